"""The masks of an attention layer, checked and combined into one.

Shape letters: B batch, T query length, S key length, N heads. In every mask
1 (True) means attend.
"""

import functools

import keras
from keras import ops


def combine_attention_masks(
    shape,
    query_mask=None,
    value_mask=None,
    key_mask=None,
    attention_mask=None,
    use_causal_mask=False,
    attention_window=None,
    query_start=0,
):
    """Combines masks so that all of them must allow a position.

    `shape` is (B, N, T, S); a dimension known only in the graph may be a
    scalar tensor. The other arguments are those of `FixedMultiHeadAttention`.
    `query_start`, an int or int scalar tensor, is the position of the first
    query; key positions begin at 0. Returns a bool tensor of rank 4 that
    broadcasts to `shape`, or `None` where nothing is masked.
    """
    batch, num_heads, target, source = shape
    masks = []
    for name, mask, expected, axes in (
        ("query_mask", query_mask, (batch, target), (1, 3)),
        ("value_mask", value_mask, (batch, source), (1, 2)),
        ("key_mask", key_mask, (batch, source), (1, 2)),
    ):
        if mask is not None:
            mask = boolean_mask(name, mask)
            _check_shape(name, mask, expected, ranks=(2,))
            # [B, T] -> [B, 1, T, 1], [B, S] -> [B, 1, 1, S]
            masks.append(ops.expand_dims(mask, axes))
    if attention_mask is not None:
        mask = boolean_mask("attention_mask", attention_mask)
        _check_shape("attention_mask", mask, shape, ranks=(2, 3, 4))
        if len(mask.shape) == 2:
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


def boolean_mask(name, mask):
    """A bool or int mask as a bool tensor; `name` is the argument's.

    Float masks raise a `ValueError`: an additive mask means the opposite.
    """
    if not hasattr(mask, "dtype"):
        mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise ValueError(
            f"`{name}` must be bool or int, 1 where a position may be attended "
            "to. A float mask could be additive, which means the opposite: "
            "pass `mask == 0` in place of an additive mask, and `mask > 0` in "
            f"place of ones and zeros. Received: {name} of dtype {dtype}"
        )
    return ops.cast(mask, "bool")


def _check_shape(name, mask, shape, ranks):
    """Raises unless `mask` broadcasts to `shape`."""
    received = tuple(mask.shape)
    rank = len(received)
    if rank in ranks:
        # [B, T, S] has no heads dimension
        expected = (shape[0], *shape[-2:]) if rank == 3 else shape[-rank:]
        if all(
            not (isinstance(size, int) and isinstance(wanted, int))
            or size in (1, wanted)
            for size, wanted in zip(received, expected)
        ):
            return
    known = ", ".join(str(d) if isinstance(d, int) else "None" for d in shape)
    raise ValueError(
        f"`{name}` does not fit the inputs: it must broadcast to ({known}), "
        f"with rank {' or '.join(map(str, ranks))}. Received: {name} of shape "
        f"{received}"
    )
