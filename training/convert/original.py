"""BERT's original checkpoints, those of google-research/bert (TensorFlow 1).

Shape letter: D embedding size (`hidden_size`).
"""

import re

import numpy as np

from keras_fixedhead.convert import BertSource
from keras_fixedhead.convert.bert_config import CONFIG_NAMES, read_sizes
from keras_fixedhead.convert.json_files import read_json
from keras_fixedhead.convert.vocabulary import read_vocabulary
from training.convert.tensorflow_files import (
    OBJECT_GRAPH,
    find_checkpoint,
    open_checkpoint,
    read_tensor,
)

CONFIG = "bert_config.json"
VOCABULARY = "vocab.txt"

# `modeling.get_activation`; its `gelu` is the approximation by tanh.
_ACTIVATIONS = {"gelu": "gelu_approximate", "relu": "relu"}

# What training leaves beside the weights: the step, and each one's moments.
_OF_TRAINING = re.compile(
    r"(.*/)?(global_step|beta[12]_power|(adam|Adam)(_\w+)?)"
)

_NEXT_SENTENCE = {
    "cls/seq_relationship/output_weights": "cls/seq_relationship/kernel",
    "cls/seq_relationship/output_bias": "cls/seq_relationship/bias",
}

_SPELLED = {name: theirs for theirs, name in _NEXT_SENTENCE.items()}


def read_original(path, **overrides):
    """Reads a checkpoint of google-research/bert.

    What it computes is that repository's `modeling.py` (Devlin et al. 2018).

    Args:
        path: a folder with `bert_config.json`, `vocab.txt` and a checkpoint,
            `bert_model.ckpt.*`; or the prefix of a checkpoint beside these.
        **overrides: what to take instead of what the files say, or where
            they do not: no file says `lowercase`. See `BertSource`.

    Returns:
        A `BertSource`.

    Raises:
        OSError: if a file is missing.
        ValueError: if a file is damaged, or of something else.
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
    tensors, source_names = {}, {}
    for theirs in names:
        if _OF_TRAINING.fullmatch(theirs):
            continue
        name = _NEXT_SENTENCE.get(theirs, theirs)
        tensor = read_tensor(reader, theirs, prefix)
        if theirs.endswith("/output_weights"):
            tensor = tensor.T  # [2, D] -> [D, 2]
        if tensor.dtype not in (np.float32, np.float64):
            tensor = tensor.astype("float32")
        tensors[name], source_names[name] = tensor, theirs
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
        source_names=source_names,
        spell=lambda name: _SPELLED.get(name, name),
        **overrides,
    )


def read_bert_config(path):
    """Reads a `bert_config.json`, the format of google-research/bert.

    Args:
        path: `pathlib.Path`.

    Returns:
        A dictionary, as in the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not JSON, lacks a size, or is not of a BERT.
    """
    config = read_json(path)
    needed = [*CONFIG_NAMES.values(), "hidden_act", "hidden_dropout_prob"]
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    read_sizes(config, path)
    width = config.get("embedding_size") or config["hidden_size"]
    if width != config["hidden_size"]:
        raise ValueError(
            f"{path} has token embeddings of another size than the model's, "
            "of which there is no equivalent here. Received: embedding_size="
            f"{width}, hidden_size={config['hidden_size']}"
        )
    if config["hidden_act"] not in [*_ACTIVATIONS]:
        raise ValueError(
            f"`hidden_act` in {path} must be one of "
            f"{', '.join(_ACTIVATIONS)}. Received: {config['hidden_act']!r}"
        )
    return config
