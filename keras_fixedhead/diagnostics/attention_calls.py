"""The attention layers of a Keras model, and what they attend to in a call.

Shape letters: B batch, T query length, S key length, D input size, N heads.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Iterable, Iterator

import keras
import numpy as np
from keras import ops

from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.attention_functions import combine_attention_masks


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """One call of an attention layer."""

    layer: keras.layers.Layer
    query: np.ndarray  # [B, T, D]
    key: np.ndarray  # [B, S, D]
    value: np.ndarray  # [B, S, D]
    allowed: np.ndarray  # where it may attend, bool, [B, 1 or N, T, S]


@contextlib.contextmanager
def recorded_calls(
    layers: Iterable[keras.layers.Layer],
) -> Iterator[list[AttentionCall]]:
    """Yields a list to which each call of the layers adds an `AttentionCall`.

    Calls over other axes than the second of three are not added, nor calls in
    a loop or in a compiled function, whose tensors have no values.
    """
    calls: list[AttentionCall] = []
    for layer in layers:
        layer.call = _recording(layer, calls)
    try:
        yield calls
    finally:
        for layer in layers:
            del layer.call  # the method of its class is left


def _recording(layer, calls):
    call = layer.call

    @functools.wraps(call)
    def record(*args, **kwargs):
        arguments = inspect.signature(call).bind(*args, **kwargs)
        arguments.apply_defaults()
        given = arguments.arguments
        if len(given["query"].shape) == 3 and _has_values(given["query"]):
            calls.append(_attention_call(layer, given))
        return call(*args, **kwargs)

    return record


def _has_values(x):
    try:
        ops.convert_to_numpy(x)
    except Exception:  # each backend has an error of its own
        return False
    return True


def _attention_call(layer, given):
    query = given["query"]
    value = query if given["value"] is None else given["value"]
    key = value if given["key"] is None else given["key"]
    masks = {
        "query_mask": _mask(given["query_mask"], query),
        "value_mask": _mask(given["value_mask"], value),
        "key_mask": _mask(given["key_mask"], key),
        "attention_mask": given["attention_mask"],
    }
    window = getattr(layer, "attention_window", None)
    if isinstance(layer, keras.layers.MultiHeadAttention):
        window = layer.get_config()["sliding_window"]
        # Keras 3.15 ignores a query mask that is passed, and takes float masks
        # of ones and zeros.
        masks["query_mask"] = _mask(None, query)
        masks = {
            name: None if mask is None else ops.cast(mask, "bool")
            for name, mask in masks.items()
        }
    batch, target = query.shape[:2]
    source = key.shape[1]
    allowed = combine_attention_masks(
        (batch, layer.num_heads, target, source),
        **masks,
        use_causal_mask=given["use_causal_mask"],
        attention_window=window,
    )
    everywhere = np.ones((batch, 1, target, source), bool)
    return AttentionCall(
        layer,
        *map(ops.convert_to_numpy, (query, key, value)),
        everywhere
        if allowed is None
        else everywhere & ops.convert_to_numpy(allowed),
    )


def _mask(mask, x):
    """A mask that was passed, or else the implicit one of `x`."""
    return getattr(x, "_keras_mask", None) if mask is None else mask


def attention_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """All attention layers; of nested ones only the innermost.

    Judged by the names of their classes: `plain_layers` are those that can be
    reported.
    """
    return [
        layer
        for layer in model._flatten_layers()
        if _attends(layer)
        and not any(map(_attends, layer._flatten_layers(include_self=False)))
    ]


def _attends(layer):
    return any(
        "Attention" in kind.__name__ and "AttentionMask" not in kind.__name__
        for kind in type(layer).__mro__
    )


def plain_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers that are the softmax of scaled products, and nothing more.

    Without those that Keras calls for each step of a sequence of sequences.
    """
    steps = {
        id(inner)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.TimeDistributed)
        for inner in layer._flatten_layers()
    }
    return [
        layer
        for layer in attention_layers(model)
        if _is_plain(layer) and id(layer) not in steps
    ]


def _is_plain(layer):
    if isinstance(layer, FixedMultiHeadAttention):
        return type(layer).call is FixedMultiHeadAttention.call
    keras_layer = keras.layers.MultiHeadAttention
    return (
        isinstance(layer, keras_layer)
        and type(layer).call is keras_layer.call
        and type(layer)._compute_attention is keras_layer._compute_attention
        and not layer.get_config()["use_gate"]
    )


@dataclasses.dataclass(frozen=True)
class Heads:
    """How a plain attention layer makes its N heads."""

    projections: tuple  # the layers that make queries, keys and values
    sizes: tuple[int, ...]  # of queries and keys
    value_sizes: tuple[int, ...]
    scales: tuple[float, ...]  # what the logits are multiplied by

    @classmethod
    def of(cls, layer: keras.layers.Layer) -> "Heads":
        if isinstance(layer, FixedMultiHeadAttention):
            return cls(
                (layer.query, layer.key, layer.value),
                layer.head_sizes,
                layer.head_sizes,
                layer.attention_scales,
            )
        config = layer.get_config()
        size, count = config["key_dim"], config["num_heads"]
        return cls(
            (layer.query_dense, layer.key_dense, layer.value_dense),
            (size,) * count,
            (config["value_dim"] or size,) * count,
            (1.0 / math.sqrt(size),) * count,
        )
