"""How many floating-point operations a shape takes.

Of the products of matrices alone, as is usual; a multiplication with its
addition counts as two. A forward and backward pass costs three times a forward
pass: the gradients of the inputs and of the weights are one more each.

Shape letters: D embedding size, N heads, H head size, F feed-forward width,
T sequence length, V vocabulary size.
"""

from keras_fixedhead.planner.shape import EncoderShape


def encoder_flops(model, sequence_length, last_block_share=1):
    """Floating-point operations of encoding one token.

    The projections of attention 8 D N H, its scores and sums 4 T N H, the
    feed-forward layers 4 D F.

    Args:
        model: an `EncoderShape` or a `FixedHeadBackbone`.
        sequence_length: int. T, the tokens that each token attends to.
        last_block_share: float. The part of the tokens that the last block
            computes; the others it attends to. See
            `FixedHeadBackbone.encode_positions`.

    Returns:
        A number.
    """
    shape = EncoderShape.of(model)
    d = shape.hidden_dim
    shares = [1] * (shape.num_layers - 1) + [last_block_share]
    return sum(
        4 * d * width  # keys and values
        + share
        * (
            4 * d * width
            + 4 * sequence_length * width
            + 4 * d * shape.intermediate_dim
        )
        for width, share in zip(shape.attention_widths, shares)
    )


def masked_lm_flops(model):
    """Floating-point operations of predicting one masked token.

    The dense layer of the head, 2 D^2, and the logits, 2 D V.

    Args:
        model: an `EncoderShape` or a `FixedHeadBackbone`.

    Returns:
        An int.
    """
    shape = EncoderShape.of(model)
    return 2 * shape.hidden_dim * (shape.hidden_dim + shape.vocabulary_size)


def forward_flops(model, sequence_length):
    """Floating-point operations of encoding one sequence, all its tokens.

    Args:
        model: an `EncoderShape` or a `FixedHeadBackbone`.
        sequence_length: int. T, its tokens.

    Returns:
        An int. Without pooler and pre-training heads.
    """
    return sequence_length * encoder_flops(model, sequence_length)


def training_flops(model, sequence_length):
    """Floating-point operations of an update, for each of its sequences.

    Args:
        model: an `EncoderShape` or a `FixedHeadBackbone`.
        sequence_length: int. T, the tokens of a sequence.

    Returns:
        An int. Three times `forward_flops`.
    """
    return 3 * forward_flops(model, sequence_length)
