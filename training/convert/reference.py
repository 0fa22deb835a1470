"""BERT's forward pass in NumPy, in float64.

Written from Devlin et al. 2018 and Vaswani et al. 2017 (the encoder). It
shares no code with the models of `keras_fixedhead`.

Shape letters: B batch, T sequence length, D embedding size, N heads, H head
size.
"""

import functools

import numpy as np
from scipy import special

from keras_fixedhead.convert import BertSource

_WORDS = "bert/embeddings/word_embeddings"

_ACTIVATIONS = {
    "gelu": lambda x: x * (1 + special.erf(x / np.sqrt(2))) / 2,
    # Hendrycks and Gimpel 2016, section 2.
    "gelu_approximate": lambda x: (
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * special.expit(x),
}


def encode(source: BertSource, inputs: dict) -> dict[str, np.ndarray]:
    """Computes the encoder's float64 outputs.

    From int arrays `token_ids`, `segment_ids` and `padding_mask`, each
    `[B, T]`, it returns `sequence_output` `[B, T, D]` and, where the source
    has a pooler, `pooled_output` `[B, D]`.
    """
    config = source.config
    activation = _activation(config)
    dense = functools.partial(_dense, source)
    layer_norm = functools.partial(_layer_norm, source)

    def heads(x):
        # [B, T, N * H] -> [B, N, T, H]
        x = x.reshape(*x.shape[:2], config["num_heads"], -1)
        return x.transpose(0, 2, 1, 3)

    tokens = np.asarray(inputs["token_ids"])
    # As in the first BERT. With -inf, rows of padding only would be NaN.
    hidden = -10_000.0 * (1 - np.asarray(inputs["padding_mask"]))
    embeddings = "bert/embeddings"
    positions = _tensor(source, f"{embeddings}/position_embeddings")
    segments = _tensor(source, f"{embeddings}/token_type_embeddings")
    x = _tensor(source, _WORDS)[tokens] + positions[: tokens.shape[1]]
    x = x + segments[inputs["segment_ids"]]
    x = layer_norm(f"{embeddings}/LayerNorm", x)
    for i in range(config["num_layers"]):
        layer = f"bert/encoder/layer_{i}"
        query, key, value = (
            heads(dense(f"{layer}/attention/self/{name}", x))
            for name in ("query", "key", "value")
        )
        scale = np.sqrt(query.shape[-1])
        # [B, N, T, H] @ [B, N, H, T] -> [B, N, T, T]
        logits = query @ key.swapaxes(2, 3) / scale + hidden[:, None, None, :]
        attended = special.softmax(logits, axis=-1) @ value
        # [B, N, T, H] -> [B, T, N * H]
        attended = attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
        x = layer_norm(
            f"{layer}/attention/output/LayerNorm",
            x + dense(f"{layer}/attention/output/dense", attended),
        )
        inner = activation(dense(f"{layer}/intermediate/dense", x))
        x = layer_norm(
            f"{layer}/output/LayerNorm",
            x + dense(f"{layer}/output/dense", inner),
        )
    outputs = {"sequence_output": x}
    if "bert/pooler/dense/kernel" in source.tensors:
        outputs["pooled_output"] = np.tanh(dense("bert/pooler/dense", x[:, 0]))
    return outputs


def predict(source: BertSource, encoded: dict) -> dict[str, np.ndarray]:
    """Computes the logits of the source's pre-training heads.

    From what `encode` returns: `masked_lm` `[B, T, V]` for every token and
    `next_sentence` `[B, 2]`.
    """
    outputs = {}
    masked_lm = "cls/predictions"
    if f"{masked_lm}/output_bias" in source.tensors:
        x = encoded["sequence_output"]
        x = _dense(source, f"{masked_lm}/transform/dense", x)
        x = _activation(source.config)(x)
        x = _layer_norm(source, f"{masked_lm}/transform/LayerNorm", x)
        logits = x @ _tensor(source, _WORDS).T
        bias = _tensor(source, f"{masked_lm}/output_bias")
        outputs["masked_lm"] = logits + bias
    if "cls/seq_relationship/kernel" in source.tensors:
        outputs["next_sentence"] = _dense(
            source, "cls/seq_relationship", encoded["pooled_output"]
        )
    return outputs


def _tensor(source, name):
    return np.asarray(source.tensors[name], "float64")


def _dense(source, name, x):
    return x @ _tensor(source, f"{name}/kernel") + _tensor(
        source, f"{name}/bias"
    )


def _layer_norm(source, name, x):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + source.config["layer_norm_epsilon"])
    return x * _tensor(source, f"{name}/gamma") + _tensor(
        source, f"{name}/beta"
    )


def _activation(config):
    if config["activation"] not in _ACTIVATIONS:
        raise ValueError(
            f"`activation` must be one of {', '.join(_ACTIVATIONS)}. "
            f"Received: {config['activation']!r}"
        )
    return _ACTIVATIONS[config["activation"]]
