"""Checks of integers and choices, and of attention's arguments and inputs.

Shape letters: B batch, S key length, D embedding size, W total width of all
heads.
"""

import math
import numbers
from collections.abc import Collection, Sequence
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
    name: str,
    value: Any,
    least: int = 1,
    optional: bool = False,
    most: float = math.inf,
) -> Any:
    """The value as an int from `least` to `most`, or an optional `None`."""
    if optional and value is None:
        return None
    if not is_integer(value) or not least <= value <= most:
        wanted = "a positive integer"
        if least != 1:
            wanted = f"an integer of at least {least}"
        if most < math.inf:
            wanted = f"an integer from {least} to {most}"
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
    if not isinstance(head_size, (list, tuple)):
        return positive_int("head_size", head_size, optional=True)
    if len(head_size) != num_heads:
        raise ValueError(
            "`head_size` as a sequence holds one size for each of the "
            f"{num_heads} heads. Received: head_size={head_size!r}"
        )
    return tuple(positive_int("head_size", size) for size in head_size)


def check_packing(
    packing: Any, query_packing: Any, value: Any, positions: bool, others: dict
) -> None:
    """Raises for arguments that do not fit `packing` and `query_packing`.

    `packing` allows none of `others`; with `query_packing` attention cannot
    depend on `positions`.
    """
    given = [name for name in others if others[name] is not None]
    if query_packing is None and value is not None:
        given.append("value")
    if packing is not None and given:
        raise ValueError(
            f"`packing` cannot be combined with {', '.join(given)}. Pad the "
            "batch instead"
        )
    if query_packing is not None and (
        packing is None or value is None or positions
    ):
        raise ValueError(
            "`query_packing` needs `packing` and `value`, no window and no "
            f"causal mask. Received: packing={packing}, value={value}"
        )


def check_cache(cache: Any, index: Any, width: int, length: int | None) -> None:
    """Raises unless a cache is `[B, 2, S, W]` and the new part fits in."""
    shape = cache.shape
    if index is None or len(shape) != 4 or (shape[1], shape[3]) != (2, width):
        raise ValueError(
            "`cache` must have the shape (batch, 2, length, "
            f"{width}) and come with `cache_update_index`. Received: cache of "
            f"shape {tuple(shape)}, cache_update_index={index}"
        )
    # Backends would silently move a part that does not fit.
    known = isinstance(index, int) and None not in (shape[2], length)
    if known and not 0 <= index <= shape[2] - length:
        raise ValueError(
            f"`cache_update_index` must leave room for {length} positions in "
            f"a cache of {shape[2]}. Received: cache_update_index={index}"
        )
