"""BERT's original TensorFlow 1 checkpoints, those of google-research/bert.

Shape letter: D embedding size (`hidden_size`).
"""

import pathlib
import re
import typing

import numpy as np
import tensorflow as tf

from keras_fixedhead.convert import BertSource
from keras_fixedhead.convert.bert_files import (
    read_json,
    read_sizes,
    read_vocabulary,
)

CONFIG = "bert_config.json"
VOCABULARY = "vocab.txt"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

_USUAL = "bert_model.ckpt"

# What a `tf.train.CheckpointReader` raises; an IndexError is a short file.
_ERRORS = (tf.errors.OpError, RuntimeError, LookupError, ValueError)

# `modeling.get_activation`; its `gelu` is the approximation by tanh.
_ACTIVATIONS = {"gelu": "gelu_approximate", "relu": "relu"}

# Training saves the step and each weight's moments, too.
_OF_TRAINING = re.compile(
    r"(.*/)?(global_step|beta[12]_power|(adam|Adam)(_\w+)?)"
)

_NEXT_SENTENCE = {
    "cls/seq_relationship/output_weights": "cls/seq_relationship/kernel",
    "cls/seq_relationship/output_bias": "cls/seq_relationship/bias",
}
_SPELLED = {ours: theirs for theirs, ours in _NEXT_SENTENCE.items()}


def read_original(
    path: str | pathlib.Path, **overrides: typing.Any
) -> BertSource:
    """Reads a checkpoint of google-research/bert.

    `path` is a folder with `bert_config.json`, `vocab.txt` and a checkpoint,
    or the prefix of a checkpoint beside these. `overrides` are attributes of
    `BertSource`; the files do not state `lowercase`.
    """
    prefix = find_checkpoint(path)
    config = read_bert_config(prefix.parent / CONFIG)
    reader = open_checkpoint(prefix)
    names = sorted(reader.get_variable_to_shape_map())
    if OBJECT_GRAPH in names:
        raise ValueError(
            f"{prefix} is a checkpoint of TensorFlow 2, as tf-models-official "
            "writes them, not one of google-research/bert. Read it with "
            "read_model_garden_checkpoint"
        )
    tensors = {}
    for theirs in names:
        if _OF_TRAINING.fullmatch(theirs):
            continue
        name = _NEXT_SENTENCE.get(theirs, theirs)
        tensor = read_tensor(reader, theirs, prefix)
        if theirs.endswith("/output_weights"):
            tensor = tensor.T  # [2, D] -> [D, 2]
        if tensor.dtype not in (np.float32, np.float64):
            tensor = tensor.astype("float32")
        tensors[name] = tensor
    if "vocabulary" not in overrides:
        overrides["vocabulary"] = read_vocabulary(prefix.parent / VOCABULARY)
    return BertSource(
        origin=str(prefix),
        config={
            **read_sizes(config, prefix.parent / CONFIG),
            "activation": _ACTIVATIONS[config["hidden_act"]],
            # `tf.contrib.layers.layer_norm`, which `modeling.py` calls.
            "layer_norm_epsilon": 1e-12,
        },
        tensors=tensors,
        spell=lambda name: _SPELLED.get(name, name),
        **overrides,
    )


def read_bert_config(path: pathlib.Path) -> dict:
    """Reads and checks a `bert_config.json` of google-research/bert."""
    config = read_json(path)
    read_sizes(config, path, ("hidden_act", "hidden_dropout_prob"))
    width = config.get("embedding_size") or config["hidden_size"]
    if width != config["hidden_size"]:
        raise ValueError(
            f"Token embeddings in {path} must be as wide as the model. "
            f"Received: embedding_size={width}, hidden_size="
            f"{config['hidden_size']}"
        )
    if config["hidden_act"] not in [*_ACTIVATIONS]:
        raise ValueError(
            f"`hidden_act` in {path} must be one of "
            f"{', '.join(_ACTIVATIONS)}. Received: {config['hidden_act']!r}"
        )
    return config


def find_checkpoint(path: str | pathlib.Path) -> pathlib.Path:
    """Returns a checkpoint's prefix: its files' names up to `.index`.

    `path` is the prefix, or a folder with `bert_model.ckpt.index` or a single
    `*.index`.
    """
    prefix = path = pathlib.Path(path)
    if path.is_dir():
        names = [index.stem for index in sorted(path.glob("*.index"))]
        if not names:
            raise FileNotFoundError(
                f"{path} has no checkpoint of TensorFlow: no *.index"
            )
        if len(names) > 1 and _USUAL not in names:
            raise ValueError(
                f"{path} has several checkpoints. Pass the path of one of "
                f"them, without .index. Received: {', '.join(names)}"
            )
        prefix = path / (_USUAL if _USUAL in names else names[0])
    elif not pathlib.Path(f"{path}.index").exists():
        raise FileNotFoundError(
            f"{path} is neither a folder nor the prefix of a checkpoint: "
            f"there is no {path}.index"
        )
    start = f"{prefix.name}.data-"
    if not any(x.name.startswith(start) for x in prefix.parent.iterdir()):
        raise FileNotFoundError(
            f"{prefix}.index has no data beside it: no {start}*"
        )
    return prefix


def open_checkpoint(prefix: pathlib.Path) -> typing.Any:
    """Opens a `tf.train.load_checkpoint`; an error names a damaged index."""
    try:
        return tf.train.load_checkpoint(str(prefix))
    except _ERRORS as error:
        raise ValueError(f"{prefix}.index is damaged: {error}") from error


def read_tensor(
    reader: typing.Any, name: str, prefix: pathlib.Path
) -> typing.Any:
    """Reads a tensor; an error names damaged data files."""
    try:
        return reader.get_tensor(name)
    except _ERRORS as error:
        raise ValueError(
            f"{name} cannot be read: {prefix}.data-* are damaged or "
            f"incomplete: {error}"
        ) from error
