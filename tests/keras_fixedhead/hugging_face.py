"""Small BERTs as Hugging Face writes them, and what they compute.

From the names and formulas of `transformers` (`modeling_bert.py`), without any
of our code: dense weights are `[outputs, inputs]`.
"""

import json

import numpy as np
import safetensors.numpy
import tokenizers
from scipy import special

from keras_fixedhead.tokenizer import SPECIAL_TOKENS

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 41,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_size": 15,
    "intermediate_size": 23,
    "max_position_embeddings": 19,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-7,
}

WORDS = ["attention", "head", "##tion", "##s", ",", ".", "!", "中", "café"]
VOCABULARY = [*SPECIAL_TOKENS, *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
TEXTS = ["Attention heads, a CAFÉ!", "head", "中a b. c", "zzz zyx attentions"]


def make_tensors(config=CONFIG, pooler=True, heads=False, seed=0):
    """Random float32 tensors; no bias is zero and no scale is one."""
    rng = np.random.default_rng(seed)
    d, f = config["hidden_size"], config["intermediate_size"]
    tensors = {}

    def add(name, *shape, scale=0.5, offset=0.0):
        tensor = offset + scale * rng.standard_normal(shape)
        tensors[name] = tensor.astype("float32")

    def dense(name, inputs, outputs):
        add(f"{name}.weight", outputs, inputs, scale=0.4)
        add(f"{name}.bias", outputs)

    def norm(name):
        add(f"{name}.weight", d, scale=0.2, offset=1.0)
        add(f"{name}.bias", d)

    for name, rows in (
        ("word", config["vocab_size"]),
        ("position", config["max_position_embeddings"]),
        ("token_type", config["type_vocab_size"]),
    ):
        add(f"embeddings.{name}_embeddings.weight", rows, d)
    norm("embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{name}", d, d)
        dense(f"{layer}.attention.output.dense", d, d)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", d, f)
        dense(f"{layer}.output.dense", f, d)
        norm(f"{layer}.output.LayerNorm")
    if pooler:
        dense("pooler.dense", d, d)
    if heads:
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
        dense("cls.predictions.transform.dense", d, d)
        norm("cls.predictions.transform.LayerNorm")
        add("cls.predictions.bias", config["vocab_size"])
        dense("cls.seq_relationship", d, 2)
    return tensors


def write_model(folder, config=CONFIG, tensors=None, vocabulary=VOCABULARY):
    """Writes a folder with `vocab.txt` and a tokenizer that lower-cases."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", config)
    safetensors.numpy.save_file(
        make_tensors(config) if tensors is None else tensors,
        folder / "model.safetensors",
    )
    (folder / "vocab.txt").write_text(
        "".join(f"{token}\n" for token in vocabulary), encoding="utf-8"
    )
    write_json(folder / "tokenizer_config.json", {"do_lower_case": True})
    return folder


def write_modules(folder, pooling=None, normalize=True, **files):
    """Writes what sentence-transformers adds, as before its version 6."""
    types = ["Transformer", "Pooling"] + ["Normalize"] * normalize
    paths = ["", "1_Pooling", "2_Normalize"]
    write_json(
        folder / "modules.json",
        [
            {
                "idx": i,
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, (path, kind) in enumerate(zip(paths, types))
        ],
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(
        folder / "1_Pooling" / "config.json",
        pooling or {"pooling_mode_mean_tokens": True},
    )
    for name, content in files.items():
        write_json(folder / f"{name}.json", content)


def new_tokenizer(vocabulary):
    """BERT's of Hugging Face's library, but for the normalizer."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {token: i for i, token in enumerate(vocabulary)},
            unk_token="[UNK]",
            max_input_chars_per_word=100,
        )
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def write_fast_tokenizer(folder, **changes):
    """`tokenizer.json` as Hugging Face's library writes it, with changes.

    Of the model, normalizer and padding, only the given fields change.
    """
    tokenizer = new_tokenizer(VOCABULARY)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", 3), ("[CLS]", 2)
    )
    tokenizer.enable_padding(length=7)
    file = json.loads(tokenizer.to_str())
    for part, value in changes.items():
        if part != "post_processor" and isinstance(value, dict):
            value = {**(file[part] or {}), **value}
        file[part] = value
    write_json(folder / "tokenizer.json", file)


def change_file(path, content):
    """Removes a file (`None`), writes bytes, JSON, or fields of its JSON."""
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict) and path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        write_json(path, {**found, **content})
    else:
        write_json(path, content)


def write_json(path, value):
    path.write_text(json.dumps(value), encoding="utf-8")


def run(tensors, inputs, config=CONFIG):
    """What such a model computes, in float64: a dictionary of arrays."""
    tensors = {
        name.removeprefix("bert."): tensor.astype("float64")
        for name, tensor in tensors.items()
    }

    def gelu(x):
        if config["hidden_act"] == "gelu":
            return x * special.ndtr(x)
        return x * special.expit((8 / np.pi) ** 0.5 * (x + 0.044715 * x**3))

    def dense(name, x):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        variance = (x**2).mean(-1, keepdims=True)
        x = x / np.sqrt(variance + config["layer_norm_eps"])
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def table(name):
        return tensors[f"embeddings.{name}_embeddings.weight"]

    token_ids = inputs["token_ids"]
    batch, length = token_ids.shape
    heads = config["num_attention_heads"]
    x = table("word")[token_ids] + table("position")[:length]
    x = norm(
        "embeddings.LayerNorm", x + table("token_type")[inputs["segment_ids"]]
    )
    closed = np.where(inputs["padding_mask"], 0.0, -1e9)[:, None, None, :]
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            dense(f"{layer}.attention.self.{name}", x)
            .reshape(batch, length, heads, -1)
            .transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        logits = q @ k.transpose(0, 1, 3, 2) / q.shape[-1] ** 0.5 + closed
        context = special.softmax(logits, -1) @ v
        context = context.transpose(0, 2, 1, 3).reshape(x.shape)
        attended = dense(f"{layer}.attention.output.dense", context)
        x = norm(f"{layer}.attention.output.LayerNorm", x + attended)
        hidden = gelu(dense(f"{layer}.intermediate.dense", x))
        x = norm(
            f"{layer}.output.LayerNorm",
            x + dense(f"{layer}.output.dense", hidden),
        )
    outputs = {"sequence_output": x}
    if "pooler.dense.weight" in tensors:
        outputs["pooled_output"] = np.tanh(dense("pooler.dense", x[:, 0]))
    if "cls.predictions.bias" in tensors:
        y = gelu(dense("cls.predictions.transform.dense", x))
        y = norm("cls.predictions.transform.LayerNorm", y)
        outputs["masked_lm"] = y @ table("word").T
        outputs["masked_lm"] += tensors["cls.predictions.bias"]
    if "cls.seq_relationship.weight" in tensors:
        outputs["next_sentence"] = dense(
            "cls.seq_relationship", outputs["pooled_output"]
        )
    return outputs
