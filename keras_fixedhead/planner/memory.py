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

    The peak is the end of the forward pass. For the backward pass there are
    then, in numbers of 4 bytes:

    - for each norm 6 B T D: its input, that less the mean, its output, and
      the inverse deviation, the scale and their product, each spread over all
      tokens and dimensions. A layer has two norms, the embeddings one.
    - for attention 4 B T W, the scaled queries, keys, values and the context,
      and 3 B N T^2, the logits' exponentials, their sums spread over them, and
      the weights of the values.
    - for the feed-forward layer 3 B T F: before the activation (tanh's GELU),
      the tanh, and after it.
    - with dropout, 2 numbers for each one that may be dropped: the words that
      JAX's generator (Threefry) draws, from which the masks are made again.
      2 B T D after the embeddings, 4 B T D + 2 B N T^2 a layer.
    - for the masked LM's head 7 B P D, the gathered positions, three of its
      dense layer, and two products and the output of its norm; and 3 B P V,
      the logits, those of the labels, and the gradient.

    and once, for all layers, B N T^2: which queries may attend to anything,
    spread over the scores. Hence

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
