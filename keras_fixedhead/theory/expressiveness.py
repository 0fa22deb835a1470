"""Theorem 2: a layer of larger heads that no standard layer equals.

Shape letters: d embedding size, n sequence length, h number of heads, H head
size, C number of inputs that are tried.

As in the paper, columns are tokens: inputs X are `[d, n]`, the projections of
head i are V_q^i, V_k^i, V_v^i `[H, d]`, and V_o is `[d, h H]`. In the standard
layer, whose matrices are W, the heads together are d wide. That larger heads
can compute what it does is `convert.from_multi_head_attention`.
"""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.convert import from_multi_head_attention

# Relative differences up to this, in units of the dtype's precision, may be
# rounding.
_ROUNDING = 100

# Differences of the logits of two tokens to try.
_LOGITS = (0.25, 1.0, 4.0, 16.0)


def check_strictness(
    layer: FixedMultiHeadAttention, sequence_length: int
) -> None:
    """Raises `ValueError` unless a layer meets Theorem 2's conditions.

    They are `n >= 2`, for n `sequence_length`; heads of one size H with
    `d >= H` and `h > d / H`; `V_o [V_v^1; ...; V_v^h]` of rank d; and
    `(V_k^i)^T V_q^i` the same matrix for all heads, of rank H. The layer must
    be built, in float32 or float64, not quantized, with inputs and output of
    one size, without a window and without biases other than 0.
    """
    # A token alone attends to itself.
    positive_int("sequence_length", sequence_length, least=2)
    heads = _heads("layer", layer)
    dim, sizes = heads.values.shape[-1], set(layer.head_sizes)
    if len(sizes) > 1:
        raise ValueError(
            "The heads of `layer` must be of one size. "
            f"Received: head sizes {layer.head_sizes}"
        )
    [head_size] = sizes
    _check_sizes(dim, layer.num_heads, head_size)
    rounding = dim * heads.precision
    first = heads.logits[0]
    for name, matrix, full in (
        ("V_o [V_v^1; ...; V_v^h]", heads.values.sum(0), dim),
        ("(V_k^i)^T V_q^i", first, head_size),
    ):
        rank = np.linalg.matrix_rank(matrix, rtol=rounding)
        if rank < full:
            raise ValueError(
                f"{name} of `layer` must have the rank {full}. Received: rank "
                f"{rank} of {full}"
            )
    differences = np.linalg.norm(heads.logits - first, axis=(1, 2))
    # Relative to the factors: their product may be small.
    if differences.max() > _ROUNDING * heads.precision * heads.factors.max():
        raise ValueError(
            "(V_k^i)^T V_q^i must be the same for all heads. Received: "
            f"head {differences.argmax()} differs from head 0 by "
            f"{differences.max():.3g}, of {np.linalg.norm(first):.3g}"
        )


def strict_layer(
    hidden_dim: int,
    num_heads: int,
    head_size: int,
    seed: int = 0,
    dtype: str = "float32",
) -> FixedMultiHeadAttention:
    """A built layer without biases that meets the conditions of Theorem 2.

    Its outputs are averages of tokens; all heads have equal queries and keys.
    """
    _check_sizes(hidden_dim, num_heads, head_size)
    layer = FixedMultiHeadAttention(
        num_heads,
        head_size,
        use_bias=False,
        kernel_initializer="zeros",
        dtype=dtype,
    )
    layer.build((None, None, hidden_dim))
    rng = np.random.default_rng(seed)

    def orthonormal(*shape):
        return np.linalg.qr(rng.standard_normal(shape))[0]

    for projection in (layer.query, layer.key):
        kernel = orthonormal(hidden_dim, head_size)
        projection.kernel.assign(np.tile(kernel, num_heads))
    output = orthonormal(num_heads * head_size, hidden_dim)
    layer.value.kernel.assign(output.T)
    layer.attention_output.kernel.assign(output)
    check_strictness(layer, 2)
    return layer


@dataclasses.dataclass(frozen=True)
class Difference:
    """An input on which two layers differ.

    `inputs` is an array `[d, n]`; call the layers on `inputs.T[None]`.
    `relative` is the norm of the difference of both outputs, over the norm of
    the first one's.
    """

    inputs: np.ndarray = dataclasses.field(repr=False)
    relative: float


def find_difference(
    layer: FixedMultiHeadAttention,
    standard: keras.layers.MultiHeadAttention | FixedMultiHeadAttention,
    sequence_length: int = 2,
) -> Difference:
    """An input on which a layer and a standard one differ, by Theorem 2.

    `layer` must pass `check_strictness` for n tokens, n `sequence_length`.
    `standard` is a built layer without biases, with inputs of the same size,
    whose heads together are d wide at most and each narrower than those of
    `layer`. Raises `ValueError` if not, and `RuntimeError` if the layers differ
    by no more than what may be rounding.

    Of equal tokens x, the layers return `M x` and `M' x`, for the sums M and M'
    of all heads' `V_o^i V_v^i`. If M = M', no head's image cancels another's,
    so it is enough to find tokens x and x - v that a head i weighs differently:
    the first singular vectors of `A_i - U`, where U and A_i are the
    `(V_k^i)^T V_q^i` of both layers times their scale, and A_i has lower rank.
    """
    check_strictness(layer, sequence_length)
    if isinstance(standard, keras.layers.MultiHeadAttention):
        standard = from_multi_head_attention(standard)
    larger, smaller = _heads("layer", layer), _heads("standard", standard)
    dim, head_size = larger.values.shape[-1], layer.head_sizes[0]
    if smaller.values.shape[-1] != dim:
        raise ValueError(
            "`standard` must have inputs of the size of those of `layer`. "
            f"Received: {smaller.values.shape[-1]} and {dim}"
        )
    sizes = standard.head_sizes
    if sum(sizes) > dim or max(sizes) >= head_size:
        raise ValueError(
            "The heads of `standard` must be as wide as the embedding "
            f"({dim}) together, or less, and each narrower than {head_size}, "
            f"the head size of `layer`. Received: head sizes {sizes}"
        )
    difference = larger.values.sum(0) - smaller.values.sum(0)
    token = np.linalg.svd(difference)[2][0]
    candidates = np.concatenate(
        [
            np.tile(token[:, np.newaxis], (1, 1, sequence_length)),
            _two_tokens(larger, smaller, sequence_length),
        ]
    )
    # [C, d, n] -> [C, n, d]
    rows = np.swapaxes(candidates, 1, 2).astype(layer.compute_dtype)
    outputs, others = (
        ops.convert_to_numpy(attend(rows)).astype("float64")
        for attend in (layer, standard)
    )
    relative = np.linalg.norm(others - outputs, axis=(1, 2)) / np.linalg.norm(
        outputs, axis=(1, 2)
    )
    best = int(relative.argmax())
    precision = max(larger.precision, smaller.precision)
    if relative[best] <= _ROUNDING * precision:
        raise RuntimeError(
            "No input was found on which the layers differ by more than "
            f"rounding: {relative[best]:.3g} of the output. Try float64."
        )
    return Difference(rows[best].T, float(relative[best]))


def _two_tokens(larger, smaller, length):
    """Inputs of two tokens, `[C, d, n]`."""
    differences = smaller.logits - larger.logits[0]
    sizes = np.linalg.norm(differences, axis=(1, 2))
    head = (sizes * np.linalg.norm(smaller.values, axis=(1, 2))).argmax()
    left, _, right = np.linalg.svd(differences[head])
    left, right = left[:, 0], right[0]
    seen = np.linalg.svd(smaller.values[head])[2][0]
    inputs = []
    for v in (left, left + math.copysign(1.0, left @ seen) * seen):
        # What s() is taken of, where x and v are as long as here.
        largest = max(
            abs(v @ logits @ right)
            for logits in (smaller.logits[head], larger.logits[0])
        )
        for logit in _LOGITS:
            scale = math.sqrt(logit / largest)
            for x in (scale * right, -scale * right):
                others = [x - scale * v] * (length - 1)
                inputs.append(np.stack([x, *others], axis=1))
    return np.stack(inputs)


@dataclasses.dataclass(frozen=True)
class _Heads:
    """The matrices of a layer's heads, float64."""

    values: np.ndarray  # V_o^i V_v^i, [h, d, d]
    logits: np.ndarray  # (V_k^i)^T V_q^i times the scale, [h, d, d]
    factors: np.ndarray  # product of the norms of a logit's factors, [h]
    precision: float  # of the layer's dtype


def _heads(name, layer):
    if not isinstance(layer, FixedMultiHeadAttention) or not layer.built:
        raise ValueError(
            f"`{name}` must be a built attention layer. Received: {layer!r}"
        )
    projections = [layer.query, layer.key, layer.value, layer.attention_output]
    biased = [
        dense.name
        for dense in projections
        if dense.use_bias and ops.convert_to_numpy(dense.bias).any()
    ]
    quantized = any(dense.quantization_mode for dense in projections)
    # Less precision hides a difference.
    precise = layer.compute_dtype in ("float32", "float64")
    if biased or quantized or layer.attention_window or not precise:
        raise ValueError(
            f"`{name}` must compute in float32 or float64, without a window "
            "and without biases other than 0, and not be quantized. Received: "
            f"dtype {layer.compute_dtype}, {quantized=}, attention_window="
            f"{layer.attention_window}, biases in {', '.join(biased)}"
        )
    kernels = [ops.convert_to_numpy(dense.kernel) for dense in projections]
    # JAX may have made float32 of float64.
    precision = float(np.finfo(kernels[0].dtype).eps)
    query, key, value, output = (kernel.astype("float64") for kernel in kernels)
    dims = [len(query), len(key), len(value), output.shape[1]]
    if len(set(dims)) > 1:
        raise ValueError(
            f"`{name}` must have queries, keys, values and outputs of one "
            f"size. Received: {dims}"
        )
    blocks = np.cumsum(layer.head_sizes)[:-1]
    queries, keys, values = (
        np.split(x, blocks, axis=1) for x in (query, key, value)
    )
    outputs = np.split(output, blocks)
    logits, factors = [], []
    for q, k, scale in zip(queries, keys, layer.attention_scales):
        logits.append(scale * k @ q.T)
        factors.append(scale * np.linalg.norm(k) * np.linalg.norm(q))
    return _Heads(
        values=np.stack([(v @ o).T for v, o in zip(values, outputs)]),
        logits=np.stack(logits),
        factors=np.array(factors),
        precision=precision,
    )


def _check_sizes(hidden_dim, num_heads, head_size):
    if hidden_dim < head_size:
        raise ValueError(
            "The head size must not be above the embedding size "
            f"({hidden_dim}). Received: head_size={head_size}"
        )
    if num_heads * head_size <= hidden_dim:
        raise ValueError(
            "There must be more heads than the embedding size over the head "
            f"size ({hidden_dim} / {head_size}). Received: {num_heads=}"
        )
