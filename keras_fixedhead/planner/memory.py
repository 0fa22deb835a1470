"""How much memory a training step takes.

Shape letters: L layers, B batch, T sequence length, D embedding size,
N heads, W total width of a layer's heads, F feed-forward width, P masked
positions of a sequence, V vocabulary size.
"""

import numbers

FLOAT_BYTES = 4


def activation_bytes(
    shape, batch_size, sequence_length, predictions_per_sequence=0
):
    """Bytes of activations at the peak of a training step, in float32.

    The peak is where the forward pass ends. Then there is, for the backward
    pass, in numbers of 4 bytes:

    - of each norm 6 B T D: its input, that less the mean, its output, and
      the inverse deviation, the scale and their product, each spread over all
      tokens and dimensions. A layer has two norms, the embeddings one.
    - of attention 4 B T W, the scaled queries, keys, values and the context,
      and 3 B N T^2, the logits' exponentials, their sums spread over them, and
      the weights of the values.
    - of the feed-forward layer 3 B T F: before the activation (tanh's GELU),
      the tanh, and after it.
    - with dropout, 2 numbers for each one that may be dropped: the words that
      JAX's generator (Threefry) draws; the masks are made of them again.
      2 B T D after the embeddings, 4 B T D + 2 B N T^2 a layer.
    - of the masked LM's head 7 B P D, what is gathered, three of its dense
      layer, and two products and the output of its norm; and 3 B P V, the
      logits, those of the labels, and the gradient.

    and once, for all layers, B N T^2: which queries may attend to anything,
    spread over the scores. Hence

    `4 (B T (12 L D + 4 sum(W) + 3 L F + 6 D) + (3 L + 1) B N T^2
    + B P (7 D + 3 V))`, and with dropout
    `8 (B T (2 L + 1) D + L B N T^2)` more.

    Not in it: weights, gradients and moments (`state_bytes`), the inputs,
    and what is smaller by a factor of D, T or H, such as the statistics of a
    row. Padding counts as tokens do: it is the padded batch that a jitted
    step computes.

    It is what XLA for CPUs holds (JAX 0.10.2): `temp_size_in_bytes` of the
    compiled gradients of the backbone or of `FixedHeadMaskedLM`, for
    B T >= 4096 to within 10%, mostly 2%, and of a whole step with AdamW, for
    BERT-base and for 24 layers with an embedding of 512, B T = 1024 or 4096,
    to within 7%. Where XLA holds less:

    - B T < 4096: it computes two of the 6 B T D of a norm anew. Up to 16%.
    - Gradients alone, without an update, of weights no smaller than what a
      layer keeps, as B T <= 2 D: it lays activations where gradients will be.
      26% less for 24 layers with an embedding of 512, B T = 1024, and more
      the fewer tokens there are.

    Where it holds more: GELU with erf, 7%; heads far wider than the
    feed-forward layer (W = 128 F), 35%.

    Other devices were not measured. XLA for TPUs (v5e, libtpu 0.0.52),
    compiled and not run, holds a quarter of it for 2 layers without dropout.
    On CPUs mixed_bfloat16 is held as float32 is.

    Args:
        shape: an `EncoderShape`. A dropout above 0 counts, its rate does not.
        batch_size: int. B, the sequences that one device holds.
        sequence_length: int. T, padding included.
        predictions_per_sequence: int. P, the masked positions that
            `FixedHeadMaskedLM` predicts, or 0 for the backbone alone.

    Returns:
        An int.

    Raises:
        ValueError: if a number is not a positive integer (P: or 0), or the
            sequence is longer than the shape's `max_sequence_length`.
    """
    _check_size("batch_size", batch_size)
    _check_size("sequence_length", sequence_length)
    if sequence_length > shape.max_sequence_length:
        raise ValueError(
            "`sequence_length` must be at most the shape's "
            f"max_sequence_length, {shape.max_sequence_length}. "
            f"Received: sequence_length={sequence_length!r}"
        )
    _check_size("predictions_per_sequence", predictions_per_sequence, least=0)
    tokens = batch_size * sequence_length
    width = shape.hidden_dim
    norms = 2 * shape.num_layers + 1
    # [B, N, T, T]
    scores = batch_size * shape.num_heads * sequence_length**2

    kept = norms * 6 * tokens * width
    kept += 4 * tokens * sum(shape.attention_widths)
    kept += (3 * shape.num_layers + 1) * scores
    kept += 3 * shape.num_layers * tokens * shape.intermediate_dim
    if shape.dropout:
        # One after each norm's input or, for the embeddings, its output.
        kept += 2 * (norms * tokens * width + shape.num_layers * scores)
    predictions = batch_size * predictions_per_sequence
    kept += predictions * (7 * width + 3 * shape.vocabulary_size)
    return FLOAT_BYTES * int(kept)


def state_bytes(num_parameters, moments=2):
    """Bytes of what stands beside the activations, in float32.

    The weights, their gradients, and what the optimizer keeps: 16 bytes a
    parameter for Adam, AdamW and LAMB. A jitted step that gives its old state
    away (Keras's trainer on JAX does) fills the gradients' share while it
    frees activations. Where activations are the larger, it takes little more
    at its peak than `activation_bytes` and the share without gradients.

    Args:
        num_parameters: int. For a model, `model.count_params()`.
        moments: int. The numbers that the optimizer keeps for each weight:
            2 for Adam, AdamW and LAMB, 1 for SGD with momentum, or 0.

    Returns:
        An int.

    Raises:
        ValueError: if a number is not a positive integer (`moments`: or 0).
    """
    _check_size("num_parameters", num_parameters)
    _check_size("moments", moments, least=0)
    return FLOAT_BYTES * int(num_parameters) * (2 + int(moments))


def _check_size(name, value, least=1):
    if (
        not isinstance(value, numbers.Integral)
        or isinstance(value, bool)
        or value < least
    ):
        raise ValueError(
            f"`{name}` must be an integer, at least {least}. "
            f"Received: {name}={value!r}"
        )
