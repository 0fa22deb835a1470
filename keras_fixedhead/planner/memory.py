"""How much memory a training step takes.

Shape letters: L layers, B batch, T sequence length, D embedding size,
N heads, W total width of a layer's heads, F feed-forward width, P masked
positions of a sequence, V vocabulary size.
"""

import numbers

from keras_fixedhead.attention_checks import positive_int
from keras_fixedhead.planner.shape import EncoderShape, check_length

_FLOAT_BYTES = 4


def activation_bytes(
    shape: EncoderShape,
    batch_size: int,
    sequence_length: int,
    predictions_per_sequence: int = 0,
) -> int:
    """Bytes of activations at the peak of a training step, in float32.

    `batch_size` is B on one device, `sequence_length` T with padding, and
    `predictions_per_sequence` P of `FixedHeadMaskedLM`, or 0 for the backbone
    alone. A dropout above 0 counts, its rate does not.

    The peak is the end of the forward pass, with what the backward pass needs:

    `4 (B T (12 L D + 4 sum(W) + 3 L F + 6 D) + (3 L + 1) B N T^2
    + B P (7 D + 3 V))`, and with dropout
    `8 (B T (2 L + 1) D + L B N T^2)` more.

    Weights, gradients and moments (`state_bytes`), the inputs, and what is
    smaller by a factor of D, T or H, such as the statistics of a row, are not
    included.

    XLA for CPUs (JAX 0.10.2) allots as much: `temp_size_in_bytes` of the
    compiled gradients of the backbone or of `FixedHeadMaskedLM`, for
    B T >= 4096 to within 10%, mostly 2%, and of a whole step with AdamW, for
    BERT-base and for 24 layers with an embedding of 512, B T = 1024 or 4096,
    to within 7%. XLA allots less in two cases:

    - B T < 4096: it computes two of the 6 B T D of a norm anew. Up to 16%.
    - Gradients alone, without an update, of weights no smaller than what a
      layer keeps, as B T <= 2 D: it lays activations where gradients will be.
      26% less for 24 layers with an embedding of 512, B T = 1024, and more
      the fewer tokens there are.

    It allots more for GELU with erf, 7%, and for heads far wider than the
    feed-forward layer (W = 128 F), 35%.

    Other devices were not measured. XLA for TPUs (v5e, libtpu 0.0.52),
    compiled and not run, allots a quarter of it for 2 layers without dropout.
    On CPUs mixed_bfloat16 takes as much as float32.
    """
    positive_int("batch_size", batch_size)
    check_length(sequence_length, shape.max_sequence_length)
    _check_not_negative("predictions_per_sequence", predictions_per_sequence)
    tokens = batch_size * sequence_length
    predictions = batch_size * predictions_per_sequence
    layers, width = shape.num_layers, shape.hidden_dim
    norms = 2 * layers + 1  # two of each layer, one of the embeddings
    scores = batch_size * shape.num_heads * sequence_length**2  # [B, N, T, T]
    # The input of a norm, that less the mean, the output; and the inverse
    # deviation, the scale and their product, spread over all numbers.
    kept = norms * 6 * tokens * width
    # Scaled queries, keys, values, and the context.
    kept += 4 * tokens * sum(shape.attention_widths)
    # Exponentials of the logits, their sums spread over them, and the weights
    # of the values; once for all layers, which queries may attend at all.
    kept += (3 * layers + 1) * scores
    # Before the activation (tanh's GELU), the tanh, and after it.
    kept += 3 * layers * tokens * shape.intermediate_dim
    if shape.dropout:
        # Two words of JAX's generator (Threefry) for each number that may be
        # dropped: one tensor at each norm, and the scores.
        kept += 2 * (norms * tokens * width + layers * scores)
    # Gathered positions, three of the dense layer, two products and the output
    # of the norm; the logits, those of the labels, and the gradient.
    kept += predictions * (7 * width + 3 * shape.vocabulary_size)
    return _FLOAT_BYTES * int(kept)


def state_bytes(num_parameters: int, moments: int = 2) -> int:
    """Bytes of weights, gradients and the optimizer's numbers, in float32.

    `moments` is how many numbers the optimizer keeps for each weight: 2 for
    Adam, AdamW and LAMB, 1 for SGD with momentum, or 0. A jitted step that
    donates its old state (Keras's trainer on JAX does) fills the gradients'
    share while it frees activations. Where activations are the larger, it
    takes little more at its peak than `activation_bytes` and the share without
    gradients.
    """
    positive_int("num_parameters", num_parameters)
    _check_not_negative("moments", moments)
    return _FLOAT_BYTES * int(num_parameters) * (2 + int(moments))


def _check_not_negative(name, value):
    if not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(
            f"`{name}` must be an integer, at least 0. "
            f"Received: {name}={value!r}"
        )
