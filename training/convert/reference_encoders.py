"""BERT's forward pass in NumPy, and by Hugging Face's `transformers`.

They share no code with the models of `keras_fixedhead`. Inputs and outputs are
those of `BertSource.encode`. `heads` adds the logits of pre-training, which are
large.

Shape letters: B batch, T sequence length, N heads, H head size.
"""

import concurrent.futures
import importlib.util
import multiprocessing
import pathlib
import typing

import numpy as np
from scipy import special

# The process that runs PyTorch imports this file, too: without TensorFlow.
if typing.TYPE_CHECKING:
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


def encode_by_numpy(
    source: "BertSource", inputs: dict, heads: bool = False
) -> dict[str, np.ndarray]:
    """Computes a source's outputs in float64.

    Written from Devlin et al. 2018 and Vaswani et al. 2017 (the encoder).
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


def has_transformers() -> bool:
    """Whether PyTorch and `transformers` are installed."""
    return all(map(importlib.util.find_spec, ("torch", "transformers")))


def encode_by_transformers(
    folder: str, batches: list[dict], heads: bool
) -> list[dict[str, np.ndarray]]:
    """Runs the model of a folder in Hugging Face's format, in float32.

    It runs in its own process: PyTorch beside TensorFlow may crash.
    """
    # `transformers` would take a path that it cannot find for a Hub name.
    folder = str(pathlib.Path(folder).resolve())
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        try:
            return pool.submit(_run, folder, batches, heads).result()
        except Exception as error:  # any, of two libraries
            raise ValueError(
                f"`transformers` is installed and cannot run {folder}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _run(folder, batches, heads):
    import torch
    import transformers

    # It would warn of parts that the folder lacks. It initializes these at
    # random, and nobody compares what they compute.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Not the `architectures` of config.json: bert-base has BertForMaskedLM
    # there, which leaves out the pooler of its file.
    architecture = "BertForPreTraining" if heads else "BertModel"
    model = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True
    )
    results = []
    for batch in batches:
        batch = {name: torch.tensor(x).long() for name, x in batch.items()}
        with torch.no_grad():
            encoded = getattr(model, "bert", model)(
                input_ids=batch["token_ids"],
                token_type_ids=batch["segment_ids"],
                attention_mask=batch["padding_mask"],
            )
            result = {
                "sequence_output": encoded.last_hidden_state,
                "pooled_output": encoded.pooler_output,
            }
            if heads:
                logits = model.cls(*encoded[:2])
                result["masked_lm"], result["next_sentence"] = logits
        results.append({name: x.numpy() for name, x in result.items()})
    return results
