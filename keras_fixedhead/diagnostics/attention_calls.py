"""The attention of a Keras model: which layers attend, and to what.

Shape letters: B batch, T query length, S key length, N heads.
"""

import dataclasses
import inspect
from typing import Any

import keras
from keras import tree

from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.attention_mask import combine_attention_masks

ATTENTION_LAYERS = (FixedMultiHeadAttention, keras.layers.MultiHeadAttention)


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

    @property
    def is_self_attention(self):
        """Whether queries and keys are made of one sequence."""
        return self.query is self.key


def attention_calls(model, inputs):
    """Finds the calls of attention layers, however deep they lie.

    Symbolic tensors go through the model, as when a functional model is made,
    and what holds attention is opened: its `call` is followed in the same
    way. Nothing of the model changes.

    Args:
        model: a built `keras.Model` or layer.
        inputs: its inputs, `keras.KerasTensor` with known shapes.

    Returns:
        A list of `AttentionCall`, in the order of computation.

    Raises:
        ValueError: if the model's `call` does not take symbolic tensors, or
            there is attention over other axes than the sequence.
    """
    return [
        _attention_call(layer, *arguments)
        for layer, *arguments in _open(model, (inputs,), {})
    ]


def head_widths(layer):
    """The sizes of the heads' keys, and of their values, tuples of N ints."""
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.head_sizes, layer.head_sizes
    config = layer.get_config()
    sizes = (config["key_dim"],) * config["num_heads"]
    value_dim = config["value_dim"] or config["key_dim"]
    return sizes, (value_dim,) * config["num_heads"]


def projections(layer):
    """The layers that make queries, keys and values of a layer's inputs."""
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.query, layer.key, layer.value
    return layer.query_dense, layer.key_dense, layer.value_dense


def _open(layer, args, kwargs):
    """The attention inside a layer's `call`: layers, with their arguments."""
    given = {id(x) for x in tree.flatten((args, kwargs))}
    try:
        outputs = layer.call(*args, **kwargs)
    except Exception as error:
        raise ValueError(
            f"Attention inside the {type(layer).__name__} {layer.name!r} "
            "cannot be found: its `call` does not take symbolic tensors. "
            "Pass the part of the model that holds attention, or write that "
            f"`call` with keras.ops. Its error was: {error}"
        ) from error
    seen, found = set(), []
    # Depth first, without recursion: a node follows what it depends on.
    stack = [(x, False) for x in reversed(tree.flatten(outputs))]
    while stack:
        x, is_done = stack.pop()
        if is_done:
            arguments = x.arguments.args, x.arguments.kwargs
            if isinstance(x.operation, ATTENTION_LAYERS):
                found.append((x.operation, *arguments))
            elif _holds_attention(x.operation):
                found.extend(_open(x.operation, *arguments))
            continue
        operation, index, _ = getattr(x, "_keras_history", (None, 0, 0))
        if id(x) in given or operation is None:
            continue
        node = operation._inbound_nodes[index]
        if id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((y, False) for y in reversed(node.input_tensors))
    return found


def _holds_attention(operation):
    return isinstance(operation, keras.layers.Layer) and any(
        isinstance(layer, ATTENTION_LAYERS)
        for layer in operation._flatten_layers(include_self=False)
    )


def _attention_call(layer, args, kwargs):
    if not _is_plain(layer):
        raise ValueError(
            "A class that computes attention in its own way cannot be "
            "reported. Pass a model whose attention layers are "
            "FixedMultiHeadAttention or Keras's and KerasHub's plain "
            f"MultiHeadAttention. Received: {layer.path}, a "
            f"{type(layer).__name__}"
        )
    arguments = inspect.signature(layer.call).bind(*args, **kwargs)
    arguments.apply_defaults()
    given = arguments.arguments
    query = given["query"]
    value = query if given["value"] is None else given["value"]
    key = value if given["key"] is None else given["key"]
    if len(query.shape) != 3:
        raise ValueError(
            "Attention must be over the second axis of three. Received: "
            f"{layer.path}, with queries of shape {tuple(query.shape)}"
        )
    masks = {
        name: _mask(layer, name, given[name], x)
        for name, x in {
            "query_mask": query,
            "value_mask": value,
            "key_mask": key,
        }.items()
    }
    allowed = combine_attention_masks(
        (query.shape[0], layer.num_heads, query.shape[1], key.shape[1]),
        **masks,
        attention_mask=given["attention_mask"],
        use_causal_mask=given["use_causal_mask"],
        attention_window=_attention_window(layer),
    )
    return AttentionCall(layer, query, key, value, allowed)


def _is_plain(layer):
    """Whether scores are the softmax of scaled products, and nothing more."""
    return type(layer).call in (
        FixedMultiHeadAttention.call,
        keras.layers.MultiHeadAttention.call,
    ) and (
        isinstance(layer, FixedMultiHeadAttention)
        or type(layer)._compute_attention
        is keras.layers.MultiHeadAttention._compute_attention
    )


def _mask(layer, name, mask, x):
    """A mask that was handed over, or else the implicit one of `x`."""
    if name == "query_mask" and isinstance(
        layer, keras.layers.MultiHeadAttention
    ):
        mask = None  # Keras 3.15 looks at the implicit one alone.
    return getattr(x, "_keras_mask", None) if mask is None else mask


def _attention_window(layer):
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.attention_window
    return layer.get_config()["sliding_window"]
