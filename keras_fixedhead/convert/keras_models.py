"""Models of Keras and KerasHub as fixed-head models with equal outputs."""

from typing import Any

import keras
import keras_hub
import numpy as np

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.convert.bert_files import require_values
from keras_fixedhead.convert.bert_source import (
    BLOCK_LAYERS,
    BertSource,
    encoder_weights,
    join_heads,
)
from keras_fixedhead.growth import grow_attention

# Layers of KerasHub's Transformer block, in the order of `BLOCK_LAYERS`.
_BLOCK_ATTRIBUTES = (
    "_self_attention_layer.query_dense",
    "_self_attention_layer.key_dense",
    "_self_attention_layer.value_dense",
    "_self_attention_layer.output_dense",
    "_self_attention_layer_norm",
    "_feedforward_intermediate_dense",
    "_feedforward_output_dense",
    "_feedforward_layer_norm",
)

# The supported settings of KerasHub's tokenizer.
_TOKENIZER = {
    "split": True,
    "split_on_cjk": True,
    "suffix_indicator": "##",
    "oov_token": "[UNK]",
    "sequence_length": None,
}


def from_multi_head_attention(
    layer: keras.layers.MultiHeadAttention,
    head_size: int | None = None,
    seed: int = 0,
) -> FixedMultiHeadAttention:
    """A `FixedMultiHeadAttention` with the weights of a Keras layer.

    `layer` is a built `keras.layers.MultiHeadAttention` over the sequence axis,
    without a gate or an activity regularizer, whose `value_dim` is `key_dim`
    and whose `output_shape` has rank 1. A `head_size` above its `key_dim`
    computes the same (the inclusion of section 3.1 of
    https://arxiv.org/abs/2002.07028) with new columns, random by `seed`, which
    have no effect until they are trained; see `growth.grow_head_size`.
    """
    attention = keras.layers.MultiHeadAttention
    if not isinstance(layer, attention) or not layer.built:
        raise ValueError(
            "`layer` must be a keras.layers.MultiHeadAttention that has been "
            f"called or built. Received: {layer!r}"
        )
    config = layer.get_config()
    config["attention_axes"] = tuple(config["attention_axes"])
    key_dim, window = config.pop("key_dim"), config.pop("sliding_window")
    supported = {
        "value_dim": key_dim,
        "attention_axes": (1,),
        "use_gate": False,
        "activity_regularizer": None,
    }
    output_shape = config["output_shape"] or (None,)
    supported["output_shape"] = output_shape[:1]
    require_values(config, supported, "`layer`")
    # Both layers have all other arguments.
    shared = {k: x for k, x in config.items() if k not in supported}
    shared["dtype"] = layer.dtype_policy
    head_size = positive_int(
        "head_size", key_dim if head_size is None else head_size, key_dim
    )
    shapes = layer.get_build_config()["shapes_dict"]

    def build(head_size):
        built = FixedMultiHeadAttention(
            head_size=head_size,
            attention_window=window,
            output_dim=output_shape[0],
            **shared,
        )
        built.build(**shapes)
        return built

    converted = build(key_dim)
    # Both have the projections of queries, keys, values and outputs. Heads side
    # by side: kernels [D, N, H] -> [D, N * H] and [N, H, D] -> [N * H, D];
    # biases [N, H] -> [N * H]
    for ours, theirs in zip(converted.weights, layer.weights, strict=True):
        ours.assign(keras.ops.reshape(theirs, ours.shape))
    if head_size == key_dim:
        return converted
    larger = build(head_size)
    grow_attention(converted, larger, np.random.default_rng(seed))
    return larger


def swap_attention(
    model: keras.Model, head_size: int | None = None, seed: int = 0
) -> keras.Model:
    """A copy of a model with every `MultiHeadAttention` replaced.

    For `head_size` and `seed` see `from_multi_head_attention`. The copy has
    equal outputs and its own weights; if the model is compiled, so is the copy,
    with a new optimizer state.

    Outputs may differ in one case: if several layers attend to one masked
    tensor, Keras 3.15 applies its implicit mask in only one of them. In the
    copy all of them apply it.

    `model` is a built functional or `Sequential` model, which may hold other
    such models. Attention inside a layer of another class cannot be replaced.

    Example:

    ```python
    model = keras.models.load_model("classifier.keras")
    model = swap_attention(model, head_size=128)
    ```
    """
    found: list[keras.layers.MultiHeadAttention] = []
    hidden: list[str] = []
    _find(model, found, hidden)
    if hidden:
        raise ValueError(
            "Attention inside another layer cannot be replaced from outside: "
            "make a FixedMultiHeadAttention in that layer's `__init__`. "
            f"Received: {', '.join(hidden)}"
        )
    if not found:
        raise ValueError(
            "`model` must be a functional or Sequential keras.Model with a "
            f"keras.layers.MultiHeadAttention. Received: {model!r}"
        )
    copies = []

    def copy(layer):
        if layer in found:
            return from_multi_head_attention(layer, head_size, seed)
        copies.append((layer, type(layer).from_config(layer.get_config())))
        return copies[-1][1]

    swapped = keras.models.clone_model(
        model, clone_function=copy, recursive=True
    )
    for layer, its_copy in copies:
        # Operations, such as a sum of tensors, have no weights.
        if isinstance(layer, keras.layers.Layer):
            its_copy.set_weights(layer.get_weights())
    return swapped


def from_bert_backbone(
    backbone: keras_hub.models.BertBackbone,
) -> FixedHeadBackbone:
    """A `FixedHeadBackbone` that computes the same as a KerasHub BERT."""
    return read_bert_backbone(backbone).build("backbone")


def read_bert_backbone(
    backbone: keras_hub.models.BertBackbone,
    tokenizer: keras_hub.models.BertTokenizer | None = None,
    **overrides: Any,
) -> BertSource:
    """Reads a KerasHub BERT; `overrides` replace attributes of `BertSource`."""
    if not isinstance(backbone, keras_hub.models.BertBackbone):
        raise ValueError(
            "`backbone` must be a keras_hub.models.BertBackbone. "
            f"Received: {backbone!r}"
        )
    config = backbone.get_config()
    weights = encoder_weights(
        backbone, dict(zip(BLOCK_LAYERS, _BLOCK_ATTRIBUTES))
    )
    found = {"encode": backbone}
    if tokenizer is not None:
        settings = {name: getattr(tokenizer, name) for name in _TOKENIZER}
        require_values(settings, _TOKENIZER, "`tokenizer`")
        found |= {
            "vocabulary": tokenizer.get_vocabulary(),
            "lowercase": tokenizer.lowercase,
            "special_tokens_in_strings": tokenizer.special_tokens_in_strings,
            "tokenize": tokenizer,
        }
    return BertSource(
        origin=backbone.name,
        config={
            **config,
            "head_size": config["hidden_dim"] // config["num_heads"],
            "activation": "gelu_approximate",
            "layer_norm_epsilon": 1e-12,
        },
        tensors=join_heads(
            {k: keras.ops.convert_to_numpy(x) for k, x in weights.items()}
        ),
        **{**found, **overrides},
    )


def _find(layer, found, hidden):
    """Collects attention layers, and names those that cannot be replaced."""
    attention = keras.layers.MultiHeadAttention
    if isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):
        for inner in layer.layers:
            _find(inner, found, hidden)
    elif isinstance(layer, attention) and type(layer).call is attention.call:
        found.append(layer)
    else:
        hidden.extend(
            f"{inner.name!r} ({type(inner).__name__}) in {layer.name!r} "
            f"({type(layer).__name__})"
            for inner in layer._flatten_layers()
            if isinstance(inner, attention)
        )
