"""The attention of a Keras model: which layers attend, and to what.

Shape letters: B batch, T query length, S key length, N heads.
"""

import dataclasses
import inspect
import math
from typing import Any

import keras
from keras import ops, tree

from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.attention_mask import combine_attention_masks
from keras_fixedhead.diagnostics.symbolic import for_inference, nodes_between


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """One call of an attention layer.

    Attributes:
        layer: the layer.
        query, key, value: its inputs, symbolic `[B, T, D]` and `[B, S, D]`.
        allowed: where it may attend, bool, broadcasts to `[B, N, T, S]`;
            symbolic, a tensor, or `None` for everywhere.
    """

    layer: keras.layers.Layer
    query: Any
    key: Any
    value: Any
    allowed: Any


def attention_calls(model, inputs):
    """Finds the calls of attention layers, however deep they lie.

    Symbolic tensors go through the model, as when a functional model is made,
    and what holds attention is opened: its `call` is followed in the same
    way. Nothing is computed.

    Args:
        model: a built `keras.Model` or layer.
        inputs: its inputs, `keras.KerasTensor` with known shapes.

    Returns:
        A list of `AttentionCall`, in the order of computation.

    Raises:
        ValueError: if the `call` of what holds attention does not take
            symbolic tensors.
    """
    # As the model's `__call__` does.
    inputs = tree.map_structure(
        lambda x: model.dtype_policy.convert_input(
            x, model.autocast, model.input_dtype
        ),
        inputs,
    )
    return [
        _attention_call(layer, *arguments)
        for layer, *arguments in _open(model, (inputs,), {})
    ]


def attention_left_out(model, calls):
    """The paths of the attention layers of a model that are in no call.

    They attend in a way of their own, over other axes, or where symbolic
    tensors do not come by: in a loop, or off the way to the outputs.
    """
    found = {id(call.layer) for call in calls}
    return tuple(
        layer.path
        for layer in model._flatten_layers()
        if _attends(layer)
        and id(layer) not in found
        # Of layers in each other the inner ones are looked at.
        and not any(map(_attends, layer._flatten_layers(include_self=False)))
    )


def head_widths(layer):
    """The sizes of the heads' keys, and of their values, tuples of N ints."""
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.head_sizes, layer.head_sizes
    config = layer.get_config()
    sizes = (config["key_dim"],) * config["num_heads"]
    value_dim = config["value_dim"] or config["key_dim"]
    return sizes, (value_dim,) * config["num_heads"]


def head_scales(layer):
    """What the logits of the heads are multiplied by, a tuple of N floats."""
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.attention_scales
    sizes, _ = head_widths(layer)
    return tuple(1.0 / math.sqrt(size) for size in sizes)


def projections(layer):
    """The layers that make queries, keys and values of a layer's inputs."""
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.query, layer.key, layer.value
    return layer.query_dense, layer.key_dense, layer.value_dense


def _open(layer, args, kwargs):
    """The attention inside a layer's `call`: layers, with their arguments."""
    kwargs = for_inference(layer, kwargs)
    try:
        outputs = layer.call(*args, **kwargs)
    except Exception as error:
        raise ValueError(
            f"Attention inside the {type(layer).__name__} {layer.name!r} "
            "cannot be found: its `call` does not take symbolic tensors. "
            "Pass the part of the model that holds attention, or write that "
            f"`call` with keras.ops. Its error was: {error}"
        ) from error
    found = []
    for node in nodes_between((args, kwargs), outputs):
        arguments = node.arguments.args, node.arguments.kwargs
        if _is_plain(node.operation):
            # Over the second axis of three.
            if len(node.input_tensors[0].shape) == 3:
                found.append((node.operation, *arguments))
        elif isinstance(node.operation, keras.layers.Layer) and any(
            map(_is_plain, node.operation._flatten_layers(include_self=False))
        ):
            found.extend(_open(node.operation, *arguments))
    return found


def _attends(layer):
    """Whether a layer is attention, to judge by what its classes are called."""
    return any(
        "Attention" in kind.__name__ and "AttentionMask" not in kind.__name__
        for kind in type(layer).__mro__
    )


def _attention_call(layer, args, kwargs):
    arguments = inspect.signature(layer.call).bind(*args, **kwargs)
    arguments.apply_defaults()
    given = arguments.arguments
    query = given["query"]
    value = query if given["value"] is None else given["value"]
    key = value if given["key"] is None else given["key"]
    masks = {
        name: _mask(layer, name, given[name], x)
        for name, x in {
            "query_mask": query,
            "value_mask": value,
            "key_mask": key,
            "attention_mask": None,
        }.items()
    }
    allowed = combine_attention_masks(
        (query.shape[0], layer.num_heads, query.shape[1], key.shape[1]),
        **masks,
        use_causal_mask=given["use_causal_mask"],
        attention_window=_attention_window(layer),
    )
    return AttentionCall(layer, query, key, value, allowed)


def _is_plain(layer):
    """Whether it is the softmax of scaled products, and nothing more."""
    if isinstance(layer, FixedMultiHeadAttention):
        return type(layer).call is FixedMultiHeadAttention.call
    keras_layer = keras.layers.MultiHeadAttention
    return (
        isinstance(layer, keras_layer)
        and type(layer).call is keras_layer.call
        and type(layer)._compute_attention is keras_layer._compute_attention
        and not layer.get_config()["use_gate"]
    )


def _mask(layer, name, mask, x):
    """A mask that was handed over, or else the implicit one of `x`."""
    by_keras = isinstance(layer, keras.layers.MultiHeadAttention)
    if by_keras and name == "query_mask":
        mask = None  # Keras 3.15 looks at the implicit one alone.
    if mask is None:
        return getattr(x, "_keras_mask", None)
    # Keras takes float masks of ones and zeros, too.
    return ops.cast(mask, "bool") if by_keras else mask


def _attention_window(layer):
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.attention_window
    return layer.get_config()["sliding_window"]
