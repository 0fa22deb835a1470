"""BERTs of tf-models-official (the TensorFlow Model Garden), live ones.

Shape letters: B batch, T sequence length, D embedding size, N heads, H head
size, I intermediate size, V vocabulary size.
"""

import numpy as np
import tensorflow as tf
from official.nlp.modeling import layers, models, networks

from keras_fixedhead.convert import BertSource

_ENCODERS = (networks.BertEncoder, networks.BertEncoderV2)

_ACTIVATIONS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_approximate": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
}
_TAKEN = ("gelu", "gelu_approximate", "relu")

_NEXT_SENTENCE = "next_sentence"


def read_model_garden(
    encoder, origin="a BERT of tf-models-official", vocabulary=None, **overrides
):
    """Reads a BERT of tf-models-official.

    Args:
        encoder: a `BertEncoder` or `BertEncoderV2` of
            `official.nlp.modeling.networks`, or a
            `official.nlp.modeling.models.BertPretrainerV2` of one, with
            weights (it was called). A pretrainer may have one
            `ClassificationHead`, called `next_sentence`; the pooler then is
            the head's, which pre-training learned, and not the encoder's,
            which it did not use.
        origin: str, what to call it in messages.
        vocabulary: its tokens, in the order of their ids, or `None`.
        **overrides: what else is known of it; see `BertSource`.

    Returns:
        A `BertSource`, whose `encode` runs `encoder`.

    Raises:
        ValueError: if it is of another class, has no weights, or computes
            what there is no equivalent of.
    """
    model, encoder = encoder, check_model(encoder, origin)
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
    named = _encoder_layers(encoder)
    named["bert/pooler/dense"] = pooler
    if head is not None:
        named["cls/seq_relationship"] = head.out_proj
    tensors = {
        "bert/embeddings/word_embeddings": encoder.get_embedding_table(),
        "bert/embeddings/position_embeddings": (
            encoder._position_embedding_layer._position_embeddings
        ),
        "bert/embeddings/token_type_embeddings": (
            encoder._type_embedding_layer.embeddings
        ),
    }
    if pretrainer is not None:
        masked_lm = pretrainer.masked_lm
        named["cls/predictions/transform/dense"] = masked_lm.dense
        named["cls/predictions/transform/LayerNorm"] = masked_lm.layer_norm
        tensors["cls/predictions/output_bias"] = masked_lm.bias
    tensors = {name: weight.numpy() for name, weight in tensors.items()}
    for name, layer in named.items():
        if name.endswith("LayerNorm"):
            tensors[f"{name}/gamma"] = layer.gamma.numpy()
            tensors[f"{name}/beta"] = layer.beta.numpy()
        else:
            kernel, bias = layer.kernel.numpy(), layer.bias.numpy().ravel()
            # Heads side by side: [D, N, H] -> [D, N * H],
            # [N, H, D] -> [N * H, D]; biases [N, H] -> [N * H]
            tensors[f"{name}/kernel"] = kernel.reshape(-1, bias.size)
            tensors[f"{name}/bias"] = bias
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
        tensors=tensors,
        **{
            "vocabulary": vocabulary,
            "encode": lambda inputs: _encode(encoder, pooler, inputs),
            **overrides,
        },
    )


def check_model(model, origin):
    """Refuses what computes anything but a BERT.

    Args:
        model: as in `read_model_garden`, with weights or without.
        origin: str, what to call it in messages.

    Returns:
        The encoder, `model` itself or a part of it.

    Raises:
        ValueError: There is no equivalent here.
    """
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
    table = config["embedding_layer"]
    for name, fits in {
        "norm_first": not config["norm_first"],
        "output_range": config["output_range"] is None,
        "embedding_width": config["embedding_width"] == config["hidden_size"],
        "embedding_layer": table is None
        or (
            type(table) is layers.OnDeviceEmbedding
            and not table.get_config()["scale_factor"]
        ),
    }.items():
        if not fits:
            raise ValueError(
                f"There is no equivalent here of the `{name}` of {origin}. "
                f"Received: {name}={config[name]!r}, with hidden_size="
                f"{config['hidden_size']}"
            )
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
            f"{origin} predicts masked tokens with a layer of its own, of "
            "which there is no equivalent here. Received: "
            f"{type(pretrainer.masked_lm).__name__}"
        )
    heads = pretrainer.classification_heads
    names = [head.name for head in heads]
    if names not in ([], [_NEXT_SENTENCE]):
        raise ValueError(
            f"{origin} may have one classification head, called "
            f"{_NEXT_SENTENCE!r}. Received: {', '.join(names)}"
        )
    for head in heads:
        if type(head) is not layers.ClassificationHead:
            raise ValueError(
                f"The head {head.name!r} of {origin} must be a "
                f"ClassificationHead. Received: {type(head).__name__}"
            )
        for name, value, fits in (
            ("inner_dim", head.inner_dim, head.inner_dim == hidden_size),
            ("cls_token_idx", head.cls_token_idx, head.cls_token_idx == 0),
            ("num_classes", head.num_classes, head.num_classes == 2),
            (
                "activation",
                head.activation,
                _name_of(head.activation) == "tanh",
            ),
        ):
            if not fits:
                raise ValueError(
                    f"The head {head.name!r} of {origin} must be BERT's "
                    f"pooler, tanh of {hidden_size} units at token 0, and 2 "
                    f"logits of it. Received: {name}={value!r}"
                )


def _encoder_layers(encoder):
    """Layers by the names of BERT's first checkpoints."""
    named = {"bert/embeddings/LayerNorm": encoder._embedding_norm_layer}
    for i, block in enumerate(encoder.transformer_layers):
        attention = block._attention_layer
        for name, layer in (
            ("attention/self/query", attention._query_dense),
            ("attention/self/key", attention._key_dense),
            ("attention/self/value", attention._value_dense),
            ("attention/output/dense", attention._output_dense),
            ("attention/output/LayerNorm", block._attention_layer_norm),
            ("intermediate/dense", block._intermediate_dense),
            ("output/dense", block._output_dense),
            ("output/LayerNorm", block._output_layer_norm),
        ):
            named[f"bert/encoder/layer_{i}/{name}"] = layer
    return named


def _activation_and_epsilon(encoder, pretrainer, named, origin):
    """Those of all layers, which have to agree."""
    activations = [
        block._intermediate_activation_layer.activation
        for block in encoder.transformer_layers
    ]
    if pretrainer is not None:
        activations.append(pretrainer.masked_lm.dense.activation)
    names = {_name_of(activation) for activation in activations}
    if len(names) > 1 or not names <= {*_TAKEN}:
        raise ValueError(
            f"{origin} must have one activation in all layers and in the head "
            f"for masked tokens (`mlm_activation`), one of "
            f"{', '.join(_TAKEN)}. Received: "
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
    """What a function computes, told by its values; `None` for another."""
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
