"""BERT's forward pass in NumPy, in float64.

Written from Devlin et al. 2018 and Vaswani et al. 2017 (the encoder). It
shares no code with the models of `keras_fixedhead`.

Shape letters: B batch, T sequence length, D embedding size, N heads, H head
size, V vocabulary size.
"""

import numpy as np
from scipy import special

from keras_fixedhead.convert import BertSource

_ACTIVATIONS = {
    "gelu": lambda x: x * (1 + special.erf(x / np.sqrt(2))) / 2,
    # Hendrycks and Gimpel 2016, section 2.
    "gelu_approximate": lambda x: (
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * special.expit(x),
}


def encode(
    source: BertSource, inputs: dict, heads: bool = False
) -> dict[str, np.ndarray]:
    """Computes a source's float64 outputs.

    From int arrays `token_ids`, `segment_ids` and `padding_mask`, each
    `[B, T]`, it returns `sequence_output` `[B, T, D]`; where the source has a
    pooler, `pooled_output` `[B, D]`; and of the `heads` of pre-training that
    it has, the logits `masked_lm` `[B, T, V]` and `next_sentence` `[B, 2]`.
    """
    config = source.config
    activation = _ACTIVATIONS[config["activation"]]

    def tensor(name):
        return np.asarray(source.tensors[name], "float64")

    def dense(name, x):
        return x @ tensor(f"{name}/kernel") + tensor(f"{name}/bias")

    def layer_norm(name, x):
        x = x - x.mean(axis=-1, keepdims=True)
        variance = (x**2).mean(axis=-1, keepdims=True)
        x = x / np.sqrt(variance + config["layer_norm_epsilon"])
        return x * tensor(f"{name}/gamma") + tensor(f"{name}/beta")

    def split_heads(x):
        # [B, T, N * H] -> [B, N, T, H]
        x = x.reshape(*x.shape[:2], config["num_heads"], -1)
        return x.transpose(0, 2, 1, 3)

    tokens = np.asarray(inputs["token_ids"])
    # As in the first BERT. With -inf, rows of padding only would be NaN.
    hidden = -10_000.0 * (1 - np.asarray(inputs["padding_mask"]))
    words = tensor("bert/embeddings/word_embeddings")
    positions = tensor("bert/embeddings/position_embeddings")
    segments = tensor("bert/embeddings/token_type_embeddings")
    x = words[tokens] + positions[: tokens.shape[1]]
    x = layer_norm(
        "bert/embeddings/LayerNorm", x + segments[inputs["segment_ids"]]
    )
    for i in range(config["num_layers"]):
        layer = f"bert/encoder/layer_{i}"
        query, key, value = (
            split_heads(dense(f"{layer}/attention/self/{name}", x))
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
    if heads and "cls/predictions/output_bias" in source.tensors:
        x = activation(dense("cls/predictions/transform/dense", x))
        x = layer_norm("cls/predictions/transform/LayerNorm", x)
        bias = tensor("cls/predictions/output_bias")
        outputs["masked_lm"] = x @ words.T + bias
    if heads and "cls/seq_relationship/kernel" in source.tensors:
        outputs["next_sentence"] = dense(
            "cls/seq_relationship", outputs["pooled_output"]
        )
    return outputs
