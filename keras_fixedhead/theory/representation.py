"""Theorem 1: which attention patterns a head of a given size can compute.

Shape letters: d embedding size, n sequence length, H head size.

As in the paper, columns are tokens: inputs X are `[d, n]`, and column j of a
context P `[n, n]`, which is positive and sums to 1, says how much token j
attends to each of the others. The scores of the Keras layer are P transposed.

A softmax ignores a constant that is added to a column. A context is therefore
determined by its logarithm less the mean of each column, the *centred log*
below; its rank is n - 1 at most.
"""

import dataclasses
import math

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.attention import FixedMultiHeadAttention

# How far from 1 a column may sum: the rounding of a float32 softmax.
_SUM_TOLERANCE = 1e-6

# Steps of gradient descent in one call of the compiled function.
_STEPS_PER_EXECUTION = 100


def construct_projections(
    inputs: ArrayLike, context: ArrayLike, head_size: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Projections whose head attends to `inputs` exactly as `context` says.

    `inputs` X is an array `[d, n]` of full column rank, so `d >= n`, and
    `context` P an array `[n, n]`. `head_size`, H, is n by default; the least is
    the rank of the centred log, to the precision of the context's dtype.

    The projections meet `(W_k X)^T (W_q X) = sqrt(H) log(P D_0)`, where the
    diagonal D_0 centres the logarithm (equation (6) of the paper). Returns
    `(W_q, W_k)`, float64 arrays `[H, d]`.
    """
    inputs = np.asarray(inputs, "float64")
    if inputs.ndim != 2 or not inputs.size or not np.isfinite(inputs).all():
        raise ValueError(
            "`inputs` must be a finite matrix, [embedding size, tokens]. "
            f"Received: inputs of shape {inputs.shape}"
        )
    size = inputs.shape[1]
    rank = np.linalg.matrix_rank(inputs)
    if rank < size:
        raise ValueError(
            "`inputs` must have full column rank. "
            f"Received: rank {rank} and {size} tokens, shape {inputs.shape}"
        )
    log, noise = _centred_log(context, size)
    left, singular, right = np.linalg.svd(log)
    rank = int((singular > noise).sum())
    if head_size is None:
        head_size = size
    elif positive_int("head_size", head_size) < rank:
        raise ValueError(
            f"`head_size` must be at least {rank}, the rank of the context's "
            f"centred logarithm. Received: head_size={head_size}"
        )
    # The factors are [H, n]; their rows above the rank stay zero.
    root = np.sqrt(math.sqrt(head_size) * singular[:rank, np.newaxis])
    keys, queries = np.zeros((2, head_size, size))
    keys[:rank] = root * left.T[:rank]
    queries[:rank] = root * right[:rank]
    inverse = np.linalg.pinv(inputs)
    return queries @ inverse, keys @ inverse


def attention_layer(
    query_projection: ArrayLike,
    key_projection: ArrayLike,
    dtype: str = "float32",
) -> FixedMultiHeadAttention:
    """A built layer of one head, without biases, with projections `[H, d]`.

    `layer(inputs.T[None], return_attention_scores=True)[1][0, 0]` is the
    context, transposed. Values are the first H numbers of a token.
    """
    shapes = np.shape(query_projection), np.shape(key_projection)
    if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
        raise ValueError(
            "`query_projection` and `key_projection` must be matrices of one "
            "shape, [head size, embedding size]. "
            f"Received: shapes {shapes[0]} and {shapes[1]}"
        )
    head_size, hidden_dim = shapes[0]
    layer = FixedMultiHeadAttention(
        num_heads=1,
        head_size=head_size,
        use_bias=False,
        kernel_initializer="identity",
        dtype=dtype,
    )
    layer.build((None, None, hidden_dim))
    layer.query.kernel.assign(np.transpose(query_projection))
    layer.key.kernel.assign(np.transpose(key_projection))
    return layer


def lowest_error(context: ArrayLike, head_size: int) -> float:
    """The least error that the logits of a head of this size can have.

    The logits of a head have rank `head_size` at most. Of all such matrices,
    with any constant added to each column, the nearest to `log(context)`
    misses it by the centred log's singular values beyond `head_size`
    (Eckart and Young 1936). Returns the root of the sum of the squared
    differences, in nats.
    """
    head_size = positive_int("head_size", head_size)
    log, _ = _centred_log(context)
    singular = np.linalg.svd(log, compute_uv=False)
    return float(np.linalg.norm(singular[head_size:]))


@dataclasses.dataclass(frozen=True)
class ContextFit:
    """What gradient descent reaches.

    Attributes:
        total_variation: in `[0, 1]`. Half the absolute differences of context
            and scores, summed over a column; the mean over columns.
        largest_total_variation: the same for the worst column.
        log_error: as in `lowest_error`, and never under it.
        scores: float32 array `[n, n]`, the context that the layer computes.
    """

    total_variation: float
    largest_total_variation: float
    log_error: float
    scores: np.ndarray = dataclasses.field(repr=False)


def fit_context(
    context: ArrayLike,
    head_size: int,
    steps: int = 1000,
    learning_rate: float = 0.1,
    seed: int = 0,
) -> ContextFit:
    """Trains a `FixedMultiHeadAttention` to attend as a context says.

    Inputs are the identity. Random query and key projections follow Adam, with
    a learning rate that falls to 0 along a cosine, down the Kullback-Leibler
    divergence of context and scores. So this bounds what a head of this size
    misses from above; `lowest_error` bounds it from below.
    """
    log, _ = _centred_log(context)
    context = np.asarray(context, "float64")
    size = len(context)
    head_size = positive_int("head_size", head_size)
    steps = positive_int("steps", steps)
    if not 0.0 < learning_rate < math.inf:
        raise ValueError(
            "`learning_rate` must be a positive number. "
            f"Received: learning_rate={learning_rate!r}"
        )
    rng = np.random.default_rng(seed)
    query, key = rng.standard_normal((2, head_size, size))
    layer = attention_layer(query, key)
    layer.value.trainable = layer.attention_output.trainable = False
    rows = keras.Input((size, size), dtype="float32")
    # The scores are [B, 1, n, n], queries before keys.
    model = keras.Model(rows, layer(rows, return_attention_scores=True)[1])
    model.compile(
        keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(learning_rate, steps)
        ),
        "kl_divergence",
        steps_per_execution=_STEPS_PER_EXECUTION,
    )
    batch = np.eye(size, dtype="float32")[np.newaxis]
    model.fit(
        np.repeat(batch, _STEPS_PER_EXECUTION, 0),
        np.tile(context.T.astype("float32"), (_STEPS_PER_EXECUTION, 1, 1, 1)),
        batch_size=1,
        # The last execution may exceed `steps`, at a learning rate of 0.
        epochs=math.ceil(steps / _STEPS_PER_EXECUTION),
        shuffle=False,
        verbose=0,
    )
    scores = ops.convert_to_numpy(model(batch))[0, 0].T
    distances = abs(scores - context).sum(0) / 2
    # From the projections in float64: a score may be 0 in float32.
    queries, keys = (
        ops.convert_to_numpy(dense.kernel).astype("float64")
        for dense in (layer.query, layer.key)
    )
    logits = keys @ queries.T / math.sqrt(head_size)
    return ContextFit(
        total_variation=float(distances.mean()),
        largest_total_variation=float(distances.max()),
        log_error=float(np.linalg.norm(logits - logits.mean(0) - log)),
        scores=scores,
    )


def _centred_log(context, size=None):
    """The centred log `[n, n]` of a context, float64, and its rounding."""
    given = np.asarray(context)
    tokens = size or max(given.shape, default=0)
    if not given.size or given.shape != (tokens, tokens):
        raise ValueError(
            "`context` must be a square matrix, for each of the tokens of "
            f"`inputs`. Received: context of shape {given.shape}"
        )
    dtype = given.dtype if given.dtype.kind == "f" else "float64"
    array = given.astype("float64")
    sums = array.sum(0)
    if not (array > 0).all() or not np.allclose(sums, 1, 0, _SUM_TOLERANCE):
        raise ValueError(
            "`context` must be positive, and each column must sum to 1. "
            f"Received: a smallest number of {array.min():g}, and columns that "
            f"sum to {sums.min():.9g} to {sums.max():.9g}"
        )
    log = np.log(array)
    noise = len(log) * np.finfo(dtype).eps * max(1.0, abs(log).max())
    return log - log.mean(0), float(noise)
