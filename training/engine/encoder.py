"""The encoder that a run trains: of a new shape, or from a preset."""

import dataclasses
import pathlib
from typing import Any

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from keras_fixedhead.convert.bert_files import read_vocabulary
from training.engine.configs import ModelConfig, StartConfig
from training.engine.preset import read_embedder
from training.engine.records import differences

SHAPE = (
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "head_size",
    "max_sequence_length",
)


def make_encoder(
    model: ModelConfig, vocabulary_size: int, **arguments: Any
) -> FixedHeadBackbone:
    """Returns a `FixedHeadBackbone` of `arguments` with random weights."""
    return FixedHeadBackbone(
        vocabulary_size=vocabulary_size,
        dropout=model.dropout,
        dtype=model.dtype,
        **{name: getattr(model, name) for name in SHAPE},
        **arguments,
    )


def read_start(
    model: StartConfig,
) -> tuple[FixedHeadTextEmbedder | None, StartConfig]:
    """Returns the preset that a run starts from, and the complete shape.

    The preset of any task is read as an embedder; None without `init`.
    """
    given = {
        name: getattr(model, name)
        for name in SHAPE
        if getattr(model, name) is not None
    }
    if model.init is None:
        missing = [n for n in SHAPE if n != "head_size" and n not in given]
        if missing:
            raise ValueError(
                "`init` must be a preset to start from, or the shape must be "
                f"given. Received: init=None, without {', '.join(missing)}"
            )
        return None, model
    start = read_embedder(model.init, "init")
    theirs = {name: getattr(start.backbone, name) for name in SHAPE}
    refuse_differences(
        model.init,
        {name: (theirs[name], value) for name, value in given.items()},
    )
    return start, dataclasses.replace(model, **theirs)


def refuse_differences(init: pathlib.Path, values: dict[str, tuple]) -> None:
    """Raises a `ValueError` where a preset differs from what a run sets.

    `values` are `{name: (value of the preset, value of the run)}`.
    """
    different = differences(
        {name: theirs for name, (theirs, _) in values.items()},
        {name: ours for name, (_, ours) in values.items()},
    )
    if different:
        raise ValueError(
            f"`init` {str(init)!r} must have the values of the run. "
            f"Different: {', '.join(different)}"
        )


def check_vocabulary(
    vocabulary: pathlib.Path | None, init: pathlib.Path | None
) -> None:
    """Raises a `ValueError` unless a run has exactly one of the two."""
    if (init is None) != (vocabulary is not None):
        raise ValueError(
            "`vocabulary` must be a file without `init`, and None with it, "
            "since the preset has a vocabulary. "
            f"Received: vocabulary={vocabulary}, init={init}"
        )


def read_tokenizer(
    start: FixedHeadTextEmbedder | None,
    vocabulary: pathlib.Path | None,
    lowercase: bool | None,
) -> FixedHeadTokenizer:
    """Returns the tokenizer of the start or, without one, of a vocabulary.

    `lowercase=None` is as in the start, or True.
    """
    if start is None:
        if vocabulary is None:
            raise ValueError("`vocabulary` must be a file without `init`.")
        return FixedHeadTokenizer(
            read_vocabulary(vocabulary), lowercase=lowercase is not False
        )
    tokenizer = start.preprocessor.tokenizer
    if lowercase not in (None, tokenizer.lowercase):
        raise ValueError(
            f"`lowercase` must be as in init, {tokenizer.lowercase}. "
            f"Received: {lowercase}"
        )
    return tokenizer


def copy_encoder(
    backbone: FixedHeadBackbone, model: ModelConfig, pooler: bool = False
) -> FixedHeadBackbone:
    """Returns a copy of an encoder with the dropout and dtype of `model`.

    Without `pooler`, the copy has none: unused weights have no gradient.
    """
    config = backbone.get_config()
    del config["name"]
    config.update(dropout=model.dropout, dtype=model.dtype, pooler=pooler)
    copy = FixedHeadBackbone(**config)
    for layer in copy.layers:
        if layer.weights:
            layer.set_weights(backbone.get_layer(layer.name).get_weights())
    return copy
