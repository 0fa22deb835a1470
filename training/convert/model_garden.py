"""Live BERTs of tf-models-official (the TensorFlow Model Garden).

Shape letters: B batch, T sequence length, D embedding size, N heads, H head
size, I intermediate size, V vocabulary size.
"""

import typing

import numpy as np
import tensorflow as tf
from official.nlp.modeling import layers, models, networks

from keras_fixedhead.convert import BertSource
from keras_fixedhead.convert.bert_files import require_values
from keras_fixedhead.convert.bert_source import (
    EMBEDDINGS_NORM,
    MASKED_LM_BIAS,
    MASKED_LM_DENSE,
    MASKED_LM_NORM,
    NEXT_SENTENCE,
    POOLER,
    WORD_EMBEDDINGS,
    encoder_layers,
    layer_tensors,
)

# Layers of their Transformer block, in the order of `encoder_layers`.
_BLOCK_ATTRIBUTES = (
    "_attention_layer._query_dense",
    "_attention_layer._key_dense",
    "_attention_layer._value_dense",
    "_attention_layer._output_dense",
    "_attention_layer_norm",
    "_intermediate_dense",
    "_output_dense",
    "_output_layer_norm",
)

_ENCODERS = (networks.BertEncoder, networks.BertEncoderV2)

_ACTIVATIONS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_approximate": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
}
_SUPPORTED = ("gelu", "gelu_approximate", "relu")

_HEAD = "next_sentence"


def read_model_garden(
    model: tf.Module,
    origin: str = "a BERT of tf-models-official",
    vocabulary: list[str] | None = None,
    **overrides: typing.Any,
) -> BertSource:
    """Reads a BERT of tf-models-official that has weights.

    `model` is a `BertEncoder` or `BertEncoderV2`, or a `BertPretrainerV2` of
    one, perhaps with one `ClassificationHead` called `next_sentence`. The
    pooler is then the head's, which pre-training trains, not the encoder's,
    which it leaves untrained. `overrides` are attributes of `BertSource`.
    """
    encoder = check_model(model, origin)
    pretrainer = model if model is not encoder else None
    head = None
    if pretrainer is not None and pretrainer.classification_heads:
        [head] = pretrainer.classification_heads
    pooler = encoder.pooler_layer if head is None else head.dense
    built = [encoder, pooler]
    if pretrainer is not None:
        built.append(pretrainer.masked_lm)
    if not all(layer.built for layer in built):
        raise ValueError(
            f"{origin} has no weights yet: call it first. Received: {model!r}"
        )
    named = {
        EMBEDDINGS_NORM: encoder._embedding_norm_layer,
        **encoder_layers(encoder.transformer_layers, _BLOCK_ATTRIBUTES),
        POOLER: pooler,
    }
    tables = {
        WORD_EMBEDDINGS: encoder.get_embedding_table(),
        "bert/embeddings/position_embeddings": (
            encoder._position_embedding_layer._position_embeddings
        ),
        "bert/embeddings/token_type_embeddings": (
            encoder._type_embedding_layer.embeddings
        ),
    }
    if head is not None:
        named[NEXT_SENTENCE] = head.out_proj
    if pretrainer is not None:
        named[MASKED_LM_DENSE] = pretrainer.masked_lm.dense
        named[MASKED_LM_NORM] = pretrainer.masked_lm.layer_norm
        tables[MASKED_LM_BIAS] = pretrainer.masked_lm.bias
    activation, epsilon = _activation_and_epsilon(
        encoder, pretrainer, named, origin
    )
    config = encoder.get_config()
    head_size = encoder.transformer_layers[0]._attention_layer._key_dim
    return BertSource(
        origin=origin,
        config={
            "vocabulary_size": config["vocab_size"],
            "num_layers": config["num_layers"],
            "num_heads": config["num_attention_heads"],
            "hidden_dim": config["hidden_size"],
            "intermediate_dim": config["inner_dim"],
            "max_sequence_length": config["max_sequence_length"],
            "num_segments": config["type_vocab_size"],
            "head_size": head_size,
            "dropout": config["output_dropout"],
            "activation": activation,
            "layer_norm_epsilon": epsilon,
        },
        tensors={
            **{name: table.numpy() for name, table in tables.items()},
            **layer_tensors(named),
        },
        **{
            "vocabulary": vocabulary,
            "encode": lambda inputs: _encode(encoder, pooler, inputs),
            **overrides,
        },
    )


def check_model(model: tf.Module, origin: str) -> tf.Module:
    """Returns the encoder of a model, perhaps without weights, if a BERT."""
    encoder = model
    if type(model) is models.BertPretrainerV2:
        encoder = model.encoder_network
    # Not isinstance(): a subclass may compute anything.
    if type(encoder) not in _ENCODERS:
        raise ValueError(
            "`encoder` must be a BertEncoder or BertEncoderV2 of "
            "official.nlp.modeling.networks, or a BertPretrainerV2 of one. "
            f"Received: {type(encoder).__module__}.{type(encoder).__name__}"
        )
    config = encoder.get_config()
    supported = {
        "norm_first": False,
        "output_range": None,
        "embedding_width": config["hidden_size"],
    }
    table = config["embedding_layer"]
    if (
        type(table) is not layers.OnDeviceEmbedding
        or table.get_config()["scale_factor"]
    ):
        supported["embedding_layer"] = None
    require_values(config, supported, origin)
    if _name_of(encoder.pooler_layer.activation) != "tanh":
        raise ValueError(
            f"The pooler of {origin} must have the activation tanh. Received: "
            f"{encoder.pooler_layer.activation!r}"
        )
    if model is not encoder:
        _check_heads(model, config["hidden_size"], origin)
    return encoder


def _check_heads(pretrainer, hidden_size, origin):
    if type(pretrainer.masked_lm) is not layers.MaskedLM:
        raise ValueError(
            f"{origin} predicts masked tokens with a layer of its own, which "
            "has no equivalent here. Received: "
            f"{type(pretrainer.masked_lm).__name__}"
        )
    heads = pretrainer.classification_heads
    names = [head.name for head in heads]
    if names not in ([], [_HEAD]):
        raise ValueError(
            f"{origin} may have one classification head, called "
            f"{_HEAD!r}. Received: {', '.join(names)}"
        )
    for head in heads:
        if type(head) is not layers.ClassificationHead:
            raise ValueError(
                f"The head {head.name!r} of {origin} must be a "
                f"ClassificationHead. Received: {type(head).__name__}"
            )
        # BERT's pooler, and two logits for next sentences.
        supported = {"inner_dim": hidden_size, "cls_token_idx": 0}
        supported |= {"num_classes": 2, "activation": "tanh"}
        received = {name: getattr(head, name) for name in supported}
        received["activation"] = _name_of(head.activation) or head.activation
        require_values(received, supported, f"{head.name} of {origin}")


def _activation_and_epsilon(encoder, pretrainer, named, origin):
    """Returns the activation and epsilon that all layers share."""
    activations = [
        block._intermediate_activation_layer.activation
        for block in encoder.transformer_layers
    ]
    if pretrainer is not None:
        activations.append(pretrainer.masked_lm.dense.activation)
    names = {_name_of(activation) for activation in activations}
    if len(names) > 1 or not names <= {*_SUPPORTED}:
        raise ValueError(
            f"{origin} must have one activation in all layers and in the head "
            f"for masked tokens (`mlm_activation`), one of "
            f"{', '.join(_SUPPORTED)}. Received: "
            + ", ".join(sorted(name or "another" for name in names))
        )
    epsilons = {
        layer.epsilon
        for name, layer in named.items()
        if name.endswith("LayerNorm")
    }
    if len(epsilons) > 1:
        raise ValueError(
            f"{origin} must have one epsilon in all layer norms. Received: "
            f"{', '.join(map(str, sorted(epsilons)))}"
        )
    return names.pop(), epsilons.pop()


def _name_of(activation):
    """Recognizes an activation by its values; `None` for an unknown one."""
    x = tf.linspace(-4.0, 4.0, 83)
    values = np.asarray(activation(x))
    for name, function in _ACTIVATIONS.items():
        # The two gelus are up to 5e-4 apart.
        if np.allclose(values, np.asarray(function(x)), rtol=0, atol=1e-5):
            return name
    return None


def _encode(encoder, pooler, inputs):
    outputs = encoder(
        {
            f"input_{theirs}": tf.convert_to_tensor(
                np.asarray(inputs[ours]), tf.int32
            )
            for theirs, ours in (
                ("word_ids", "token_ids"),
                ("type_ids", "segment_ids"),
                ("mask", "padding_mask"),
            )
        },
        training=False,
    )
    if isinstance(outputs, dict):
        sequence = outputs["sequence_output"]
    else:  # `BertEncoder` with dict_outputs=False
        sequence = outputs[0]
        if isinstance(sequence, (list, tuple)):
            sequence = sequence[-1]
    return {
        "sequence_output": sequence.numpy(),
        "pooled_output": pooler(sequence[:, 0]).numpy(),
    }
