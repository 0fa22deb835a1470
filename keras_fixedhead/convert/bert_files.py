"""Files that BERT formats share, read with errors that name the file."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

# Arguments of a `FixedHeadBackbone`, and their names in `bert_config.json`
# and in Hugging Face's `config.json`.
CONFIG_NAMES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}

# Settings that change what a model of Hugging Face's or sentence-transformers'
# computes, by file, each with the one value that has an equivalent here.
SUPPORTED: dict[str, dict[str, Any]] = {
    "config.json": {
        "add_cross_attention": False,
        "is_decoder": False,
        "is_encoder_decoder": False,
        "position_embedding_type": "absolute",
        "pruned_heads": {},
        "quantization_config": {},
    },
    "tokenizer_config.json": {
        "clean_text": True,
        "do_basic_tokenize": True,
        "tokenize_chinese_chars": True,
        "wordpieces_prefix": "##",
    },
    "sentence_bert_config.json": {
        "config_args": {},
        "config_kwargs": {},
        "document_length": None,
        "model_args": {},
        "model_kwargs": {},
        "module_output_name": "token_embeddings",
        "processing_kwargs": {},
        "processor_kwargs": {},
        "query_expansion": None,
        "query_length": None,
        "tokenizer_args": {},
        "tokenizer_name_or_path": None,
        "transformer_task": "feature-extraction",
    },
    "config_sentence_transformers.json": {
        "model_type": "SentenceTransformer",
        "truncate_dim": None,
    },
}


def read_json(
    path: str | os.PathLike, default: Any = None, kind: type = dict
) -> Any:
    """Reads a JSON file of a `kind`; with a `default`, it may be missing."""
    path = pathlib.Path(path)
    if default is not None and not path.exists():
        return default
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        wanted = "object" if kind is dict else "list"
        raise ValueError(
            f"{path} must hold a JSON {wanted}. Received: "
            f"{type(value).__name__}"
        )
    return value


def read_settings(path: pathlib.Path, advice: str = "") -> dict:
    """Reads a JSON file that may be missing, and checks it by `SUPPORTED`."""
    record = read_json(path, default={})
    require_values(record, SUPPORTED[path.name], path, advice)
    return record


def read_field(
    record: Mapping,
    name: str,
    kind: type,
    path: str | os.PathLike,
    default: Any = None,
) -> Any:
    """Reads a value of type `kind`, `float` for any number, if it is there."""
    value = record.get(name)
    if value is None:
        return default
    # In Python, True is an instance of int.
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise ValueError(
            f"`{name}` in {path} must be of type {kind.__name__}. Received: "
            f"{value!r}"
        )
    return value


def require_values(
    record: Mapping, values: Mapping, path: object, advice: str = ""
) -> None:
    """Refuses fields with other than the supported values."""
    for name, value in values.items():
        if record.get(name) not in (None, value):
            raise ValueError(
                f"{path} has {name}={record[name]!r}, which has no equivalent "
                f"here: it must be {value!r}{advice}"
            )


def read_arguments(
    config: Mapping, path: pathlib.Path, activations: Mapping[str, str]
) -> dict[str, Any]:
    """Arguments of a `FixedHeadBackbone`, except the epsilon of its norms.

    `activations` maps the names that the format has for Keras's.
    """
    for name in CONFIG_NAMES.values():
        if type(config.get(name)) is not int or config[name] < 1:
            raise ValueError(
                f"`{name}` in {path} must be an int of 1 or more. Received: "
                f"{config.get(name)!r}"
            )
    sizes = {ours: config[theirs] for ours, theirs in CONFIG_NAMES.items()}
    head_size, rest = divmod(sizes["hidden_dim"], sizes["num_heads"])
    if rest:
        raise ValueError(
            f"`hidden_size` in {path} must be a multiple of "
            "`num_attention_heads`, as in BERT. Received: hidden_size="
            f"{sizes['hidden_dim']}, num_attention_heads={sizes['num_heads']}"
        )
    dropout = read_field(config, "hidden_dropout_prob", float, path, 0.1)
    if not 0 <= dropout <= 1:
        raise ValueError(
            f"`hidden_dropout_prob` in {path} must be from 0 to 1. Received: "
            f"{dropout}"
        )
    activation = read_field(config, "hidden_act", str, path, "gelu")
    if activation not in activations:
        raise ValueError(
            f"The activation in {path} (`hidden_act` or `hidden_activation`) "
            f"must be one of {', '.join(activations)}. Received: {activation!r}"
        )
    return {
        **sizes,
        "head_size": head_size,
        "dropout": dropout,
        "activation": activations[activation],
    }


def read_vocabulary(path: pathlib.Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    # Unlike splitlines(), this splits at line feeds only.
    return text.removesuffix("\n").split("\n")
