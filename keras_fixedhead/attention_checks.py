"""Checks of integers and choices, and of attention's arguments and inputs.

Shape letters: B batch, S key length, D embedding size, W total width of all
heads.
"""

import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# Arguments of keras.layers.MultiHeadAttention, and what to do without them.
_KERAS_NAMES = {
    "key_dim": "Pass `head_size`",
    "value_dim": "Pass `head_size`, the size of keys and of values",
    "sliding_window": "Pass `attention_window`",
    "output_shape": "Pass `output_dim`, an int",
    "use_gate": "Leave it out",
    "attention_axes": "Leave it out",
    "flash_attention": "Leave it out",
}


def is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def positive_int(
    name: str, value: Any, least: int = 1, optional: bool = False
) -> Any:
    """The value as an int of at least `least`; an optional one may be `None`.

    Errors call the argument `name`.
    """
    if optional and value is None:
        return None
    if not is_integer(value) or value < least:
        wanted = (
            "a positive integer"
            if least == 1
            else f"an integer of at least {least}"
        )
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name}={value!r}"
        )
    return int(value)


def one_of(name: str, value: Any, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}. Received: "
            f"{name}={value!r}"
        )


def refuse_keras_names(arguments: dict) -> None:
    """Raises TypeError for arguments that only Keras's layer has."""
    for name in arguments.keys() & _KERAS_NAMES.keys():
        raise TypeError(
            f"FixedMultiHeadAttention has no argument `{name}`. "
            f"{_KERAS_NAMES[name]}. Received: {name}={arguments[name]!r}"
        )


def check_head_size(
    head_size: int | Sequence[int] | None, num_heads: int
) -> int | tuple[int, ...] | None:
    """`head_size` as `None`, an int, or a tuple of `num_heads` ints."""
    if not isinstance(head_size, (list, tuple)):
        return positive_int("head_size", head_size, optional=True)
    if len(head_size) != num_heads:
        raise ValueError(
            "`head_size` as a sequence holds one size for each of the "
            f"{num_heads} heads. Received {len(head_size)}: "
            f"head_size={head_size!r}"
        )
    return tuple(positive_int("head_size", size) for size in head_size)


def check_attention_scale(scale: Any) -> float | None:
    """`attention_scale` as `None` or a float."""
    if scale is None:
        return None
    is_number = isinstance(scale, numbers.Real) and not isinstance(scale, bool)
    if not is_number or not 0 < scale < math.inf:
        raise ValueError(
            "`attention_scale` must be a number above 0, or None for "
            f"1 / sqrt(head_size). Received: attention_scale={scale!r}"
        )
    return float(scale)


def check_dropout(dropout: Any) -> float:
    """Returns a rate in [0, 1), or raises."""
    is_number = isinstance(dropout, numbers.Real)
    if not is_number or not 0 <= dropout < 1:
        raise ValueError(
            "`dropout` must be a number in [0, 1). "
            f"Received: dropout={dropout!r}"
        )
    return dropout


def check_input_shapes(shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Raises unless all shapes are `[B, length, D]` and S is one length."""
    for name, shape in shapes.items():
        if len(shape) != 3:
            raise ValueError(
                f"`{name}` must have rank 3, [batch, length, embedding "
                f"size]. Received: {name} of shape {tuple(shape)}"
            )
    value, key = shapes["value"], shapes["key"]
    if value[1] != key[1] and None not in (value[1], key[1]):
        raise ValueError(
            "`value` and `key` must have the same length. Received: value of "
            f"shape {tuple(value)}, key of shape {tuple(key)}"
        )


def refuse_with_packing(**arguments: Any) -> None:
    """Raises if an argument that excludes `packing` is set."""
    given = [name for name in arguments if arguments[name] is not None]
    if given:
        raise ValueError(
            "`packing` cannot be combined with "
            f"{', '.join(given)}: the real tokens attend to each other. Pass "
            f"`packing` without {', '.join(given)}, or pad the batch"
        )


def check_query_packing(
    packing: Any, value: Any, window: int | None, causal: bool
) -> None:
    """Raises if attention depends on positions, which `query_packing` loses."""
    if packing is None or value is None or window or causal:
        raise ValueError(
            "`query_packing` needs `packing` and `value`, no window and no "
            f"causal mask. Received: packing={packing}, value={value}, "
            f"attention_window={window}, use_causal_mask={causal}"
        )


def check_cache(cache: Any, index: Any, width: int, length: int | None) -> None:
    """Raises unless a cache is `[B, 2, S, W]` and the new part fits in."""
    if (cache is None) != (index is None):
        raise ValueError(
            "Pass `cache` and `cache_update_index` together. Received: "
            f"{'no' if cache is None else 'a'} cache, "
            f"cache_update_index={index}"
        )
    if cache is None:
        return
    shape = cache.shape
    if len(shape) != 4 or shape[1] != 2 or shape[3] != width:
        raise ValueError(
            "`cache` holds keys and values, all heads side by side, and must "
            f"have the shape (batch, 2, length, {width}). Received: cache of "
            f"shape {tuple(shape)}"
        )
    # Backends would silently move a part that does not fit.
    known = isinstance(index, int) and None not in (shape[2], length)
    if known and not 0 <= index <= shape[2] - length:
        raise ValueError(
            f"`cache_update_index` must leave room for {length} positions in "
            f"a cache of {shape[2]}. Received: cache_update_index={index}"
        )
