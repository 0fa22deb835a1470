"""What a shape costs.

Shape letters: L layers, D embedding size, N heads, H head size, F feed-forward
width, T sequence length, V vocabulary size.
"""


def encoder_flops(backbone, sequence_length, last_block_share=1):
    """Floating-point operations of encoding one token.

    Of the products of matrices alone, as is usual: the projections of
    attention 8 D N H, its scores and sums 4 T N H, the feed-forward layers
    4 D F. A multiplication with its addition counts as two.

    Args:
        backbone: a `FixedHeadBackbone`.
        sequence_length: int. T, the tokens that each token attends to.
        last_block_share: float. The part of the tokens that the last block
            computes; the others it attends to. See
            `FixedHeadBackbone.encode_positions`.

    Returns:
        A number. A forward and backward pass costs three times that.
    """
    flops = 0
    for layer in backbone.transformer_layers:
        width = layer.attention.query.units  # N * H
        last = layer is backbone.transformer_layers[-1]
        flops += 4 * backbone.hidden_dim * width  # keys and values
        flops += (last_block_share if last else 1) * (
            4 * backbone.hidden_dim * width
            + 4 * sequence_length * width
            + 4 * backbone.hidden_dim * backbone.intermediate_dim
        )
    return flops


def masked_lm_flops(backbone):
    """Floating-point operations of predicting one masked token.

    The dense layer of the head, 2 D^2, and the logits, 2 D V.

    Args:
        backbone: a `FixedHeadBackbone`.

    Returns:
        An int. A forward and backward pass costs three times that.
    """
    width = backbone.hidden_dim
    return 2 * width * (width + backbone.vocabulary_size)
