"""The computations of the attention layer that need no weights.

Shape letters: B batch, T query length, S key length, N heads, H head size,
W total width of all heads. In every mask 1 (True) means attend.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_fixedhead.layer_config import Tensor


def combine_attention_masks(
    target: int | Tensor,
    source: int | Tensor,
    query_mask: Tensor | None = None,
    value_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    use_causal_mask: bool = False,
    attention_window: int | None = None,
    query_start: int | Tensor = 0,
) -> Tensor | None:
    """Combines masks so that all of them must allow a position.

    `target` and `source` are T and S, `query_start` the position of the first
    query; the masks are those of `FixedMultiHeadAttention`. Returns a bool
    tensor that broadcasts to `[B, N, T, S]`, or `None` where nothing is masked.
    """
    masks = []
    for name, mask, axes in (
        ("query_mask", query_mask, (1, 3)),
        ("value_mask", value_mask, (1, 2)),
        ("key_mask", key_mask, (1, 2)),
    ):
        if mask is not None:
            # [B, T] -> [B, 1, T, 1], [B, S] -> [B, 1, 1, S]
            masks.append(ops.expand_dims(boolean_mask(name, mask), axes))
    if attention_mask is not None:
        mask = boolean_mask("attention_mask", attention_mask)
        while len(mask.shape) < 3:
            mask = ops.expand_dims(mask, 0)
        # [B, T, S] -> [B, 1, T, S]
        masks.append(mask if len(mask.shape) == 4 else ops.expand_dims(mask, 1))
    if use_causal_mask or attention_window:
        # how far behind the query position the key position lies, [T, S]
        position = ops.arange(target) + query_start
        distance = ops.expand_dims(position, 1) - ops.arange(source)
        distance = ops.expand_dims(distance, (0, 1))
        if use_causal_mask:
            masks.append(distance >= 0)
        if attention_window:
            masks.append(ops.abs(distance) < attention_window)
    return functools.reduce(ops.logical_and, masks) if masks else None


def boolean_mask(name: str, mask: Tensor) -> Tensor:
    """A bool or int mask as a bool tensor; `name` is the argument's."""
    if not hasattr(mask, "dtype"):
        mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise ValueError(
            f"`{name}` must be bool or int, 1 where a position may be attended "
            "to. Pass `mask == 0` in place of an additive mask, and `mask > 0` "
            f"in place of ones and zeros. Received: {name} of dtype {dtype}"
        )
    return ops.cast(mask, "bool")


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_sizes: Sequence[int],
    mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention with heads side by side, of `head_sizes`.

    Takes `[B, T, W]`, `[B, S, W]`, `[B, S, W]`, a bool mask that broadcasts to
    `[B, N, T, S]`, and a scale of the logits, by default `1 / sqrt(H)`. Returns
    the context `[B, T, W]` and the scores before dropout `[B, N, T, S]`; the
    softmax is computed in float32 at least. A query position that may attend to
    nothing gets zeros for both. Equal adjacent heads run at once.
    """
    contexts, scores = [], []
    start, head = 0, 0
    for size, run in itertools.groupby(head_sizes):
        heads = len(tuple(run))
        stop = start + heads * size
        run_mask = mask
        if mask is not None and mask.shape[1] not in (1, None):
            run_mask = mask[:, head : head + heads]
        # [B, T, W] -> [B, T, heads, size]
        run_query, run_key, run_value = (
            ops.reshape(
                x if heads == len(head_sizes) else x[..., start:stop],
                (*ops.shape(x)[:2], heads, size),
            )
            for x in (query, key, value)
        )
        run_scores = _scores(run_query, run_key, run_mask, scale)
        weights = run_scores if dropout is None else dropout(run_scores)
        context = ops.einsum("bnts,bsnh->btnh", weights, run_value)
        # [B, T, heads, size] -> [B, T, heads * size]
        contexts.append(
            ops.reshape(context, (*ops.shape(query)[:2], heads * size))
        )
        scores.append(run_scores)
        start, head = stop, head + heads
    if len(contexts) == 1:
        return contexts[0], scores[0]
    return ops.concatenate(contexts, -1), ops.concatenate(scores, 1)


def _scores(query, key, mask, scale):
    """The scores `[B, N, T, S]` of heads of one size, `[B, T, N, H]`."""
    dtype = keras.backend.standardize_dtype(query.dtype)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    # TensorFlow's cast would first round a Python number to float32.
    query = query * ops.convert_to_tensor(scale, dtype)
    logits = ops.einsum("btnh,bsnh->bnts", query, key)
    # Not `at_least_float32`, which rounds float64 on JAX.
    if dtype in ("float16", "bfloat16"):
        logits = ops.cast(logits, "float32")
    if mask is None:
        return ops.cast(ops.softmax(logits), dtype)
    allowed = ops.cast(mask, logits.dtype)
    # exp() of a masked logit is exactly 0 beside one that is not masked.
    # Where all are masked, the softmax is multiplied by 0.
    scores = ops.softmax(logits + (1.0 - allowed) * -1e9)
    anywhere = ops.any(mask, axis=-1, keepdims=True)
    return ops.cast(scores * ops.cast(anywhere, logits.dtype), dtype)


def write_cache(cache: Tensor, index: int | Tensor, part: Tensor) -> Tensor:
    """Writes a part `[B, 2, T, W]` into a cache `[B, 2, S, W]` at `index`."""
    if keras.backend.backend() != "tensorflow":
        return ops.slice_update(cache, (0, 0, index, 0), part)
    # TensorFlow's slice_update requires XLA, which TF Serving lacks.
    sizes = ops.shape(part)
    places = ops.meshgrid(
        *(ops.arange(size, dtype="int32") for size in sizes[:3]), indexing="ij"
    )
    places[2] += ops.cast(index, "int32")
    return ops.scatter_update(
        cache,
        ops.reshape(ops.stack(places, axis=-1), (-1, 3)),
        ops.reshape(part, (-1, sizes[3])),
    )
