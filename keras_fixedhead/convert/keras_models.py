"""Models of Keras and KerasHub as fixed-head models with equal outputs."""

import operator

import keras
import keras_hub
import numpy as np

from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.attention_checks import positive_int
from keras_fixedhead.convert.bert_source import WORD_EMBEDDINGS, BertSource
from keras_fixedhead.growth import grow_attention


def from_multi_head_attention(layer, head_size=None, seed=0):
    """A `FixedMultiHeadAttention` with the weights of a Keras layer.

    Larger heads can compute what smaller ones do, which is the inclusion of
    the paper's section 3.1: see `keras_fixedhead.growth.grow_head_size` for
    what their new columns hold.

    Args:
        layer: a built `keras.layers.MultiHeadAttention`.
        head_size: int or `None`. The size of each head, not under the
            layer's `key_dim`; `None` means `key_dim`.
        seed: int. Seed of the new columns of larger heads, which have no
            effect before they are trained.

    Returns:
        A built `FixedMultiHeadAttention` that computes the same, dropout
        included.

    Raises:
        ValueError: if `layer` is not built, `head_size` is not an integer or
            under `key_dim`, or `layer` uses what there is no equivalent of: a
            `value_dim` other than its `key_dim`, `attention_axes` other than
            the sequence, an `output_shape` of rank 2 or more, a gate, an
            activity regularizer.

    Source: https://arxiv.org/abs/2002.07028, section 3.1.
    """
    if not isinstance(layer, keras.layers.MultiHeadAttention):
        raise ValueError(
            "`layer` must be a keras.layers.MultiHeadAttention. "
            f"Received: {layer!r}"
        )
    if not layer.built:
        raise ValueError(
            "`layer` has no weights yet: call it, or its `build`, first. "
            f"Received: {layer!r}"
        )
    config = layer.get_config()
    output_shape = config["output_shape"] or (None,)
    for name, fits in {
        "value_dim": config["value_dim"] == config["key_dim"],
        "attention_axes": tuple(config["attention_axes"]) == (1,),
        "output_shape": len(output_shape) == 1,
        "use_gate": not config["use_gate"],
        "activity_regularizer": config["activity_regularizer"] is None,
    }.items():
        if not fits:
            raise ValueError(
                f"FixedMultiHeadAttention has no equivalent of this `{name}`. "
                f"Received: a MultiHeadAttention with {name}={config[name]} "
                f"and key_dim={config['key_dim']}"
            )
    key_dim = config["key_dim"]
    head_size = positive_int(
        "head_size", key_dim if head_size is None else head_size
    )
    if head_size < key_dim:
        raise ValueError(
            f"`head_size` must not be under the layer's key_dim ({key_dim}): "
            "smaller heads would not compute the same. "
            f"Received: head_size={head_size}"
        )
    shapes = layer.get_build_config()["shapes_dict"]

    def build(head_size):
        built = FixedMultiHeadAttention(
            num_heads=config["num_heads"],
            head_size=head_size,
            attention_window=config["sliding_window"],
            output_dim=output_shape[0],
            **{
                name: config[name]
                for name in (
                    "dropout",
                    "use_bias",
                    "kernel_initializer",
                    "bias_initializer",
                    "kernel_regularizer",
                    "bias_regularizer",
                    "kernel_constraint",
                    "bias_constraint",
                    "seed",
                    "name",
                    "trainable",
                )
            },
            dtype=layer.dtype_policy,
        )
        built.build(**shapes)
        return built

    converted = build(key_dim)
    _copy_attention(layer, converted)
    if head_size == key_dim:
        return converted
    larger = build(head_size)
    grow_attention(converted, larger, np.random.default_rng(seed))
    return larger


def from_bert_backbone(backbone):
    """A `FixedHeadBackbone` with the weights of a KerasHub BERT.

    Args:
        backbone: a `keras_hub.models.BertBackbone`.

    Returns:
        A `FixedHeadBackbone` with `head_size = hidden_dim // num_heads` and a
        pooler, that computes the same.

    Raises:
        ValueError: if `backbone` is of another class.
    """
    return read_bert_backbone(backbone).build("backbone")


def read_bert_backbone(backbone, tokenizer=None, **overrides):
    """Reads a KerasHub BERT.

    Args:
        backbone: a `keras_hub.models.BertBackbone`.
        tokenizer: the `keras_hub.models.BertTokenizer` it was trained with,
            or `None`.
        **overrides: attributes of `BertSource` to take instead.

    Returns:
        A `BertSource`.

    Raises:
        ValueError: if `backbone` is of another class, or `tokenizer` does
            what there is no equivalent of.
    """
    if not isinstance(backbone, keras_hub.models.BertBackbone):
        raise ValueError(
            "`backbone` must be a keras_hub.models.BertBackbone. "
            f"Received: {backbone!r}"
        )
    config = backbone.get_config()
    layers = {
        "bert/embeddings/LayerNorm": backbone.embeddings_layer_norm,
        "bert/pooler/dense": backbone.pooled_dense,
    }
    for i, block in enumerate(backbone.transformer_layers):
        for theirs, name in (
            ("_self_attention_layer.query_dense", "attention/self/query"),
            ("_self_attention_layer.key_dense", "attention/self/key"),
            ("_self_attention_layer.value_dense", "attention/self/value"),
            ("_self_attention_layer.output_dense", "attention/output/dense"),
            ("_self_attention_layer_norm", "attention/output/LayerNorm"),
            ("_feedforward_intermediate_dense", "intermediate/dense"),
            ("_feedforward_output_dense", "output/dense"),
            ("_feedforward_layer_norm", "output/LayerNorm"),
        ):
            layers[f"bert/encoder/layer_{i}/{name}"] = operator.attrgetter(
                theirs
            )(block)
    tensors = {
        WORD_EMBEDDINGS: backbone.token_embedding.get_weights()[0],
        "bert/embeddings/position_embeddings": (
            backbone.position_embedding.get_weights()[0]
        ),
        "bert/embeddings/token_type_embeddings": (
            backbone.segment_embedding.get_weights()[0]
        ),
    }
    for name, layer in layers.items():
        first, second = layer.get_weights()
        if isinstance(layer, keras.layers.LayerNormalization):
            tensors[f"{name}/gamma"], tensors[f"{name}/beta"] = first, second
        else:
            # Heads side by side: [D, N, H] -> [D, N * H],
            # [N, H, D] -> [N * H, D]; biases [N, H] -> [N * H]
            bias = second.reshape(-1)
            tensors[f"{name}/kernel"] = (
                first.reshape(-1, first.shape[-1])
                if bias.shape == second.shape
                else first.reshape(len(first), -1)
            )
            tensors[f"{name}/bias"] = bias
    found = {"encode": backbone}
    if tokenizer is not None:
        _check_tokenizer(tokenizer)
        found["vocabulary"] = tokenizer.get_vocabulary()
        found["lowercase"] = tokenizer.lowercase
        found["special_tokens_in_strings"] = tokenizer.special_tokens_in_strings
        found["tokenize"] = tokenizer
    return BertSource(
        origin=backbone.name,
        config={
            **config,
            "head_size": config["hidden_dim"] // config["num_heads"],
            "activation": "gelu_approximate",
            "layer_norm_epsilon": 1e-12,
        },
        tensors=tensors,
        **{**found, **overrides},
    )


def _check_tokenizer(tokenizer):
    for name, value in {
        "split": True,
        "split_on_cjk": True,
        "suffix_indicator": "##",
        "oov_token": "[UNK]",
        "sequence_length": None,
    }.items():
        found = getattr(tokenizer, name)
        if found != value:
            raise ValueError(
                f"There is no equivalent here of a `tokenizer` with {name}="
                f"{found!r}: it has to be {value!r}"
            )


def _copy_attention(source, target):
    """Copies the weights of a `MultiHeadAttention`, heads laid side by side.

    Kernels `[D, N, H]` -> `[D, N * H]`, `[N, H, D]` -> `[N * H, D]`; biases
    `[N, H]` -> `[N * H]`.
    """
    for theirs, ours in (
        (source.query_dense, target.query),
        (source.key_dense, target.key),
        (source.value_dense, target.value),
        (source.output_dense, target.attention_output),
    ):
        ours.set_weights(
            [
                weight.reshape(variable.shape)
                for weight, variable in zip(theirs.get_weights(), ours.weights)
            ]
        )
