"""Preset folders: written whole or not at all, read, and started from."""

import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import keras_hub

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from keras_fixedhead.convert.bert_files import read_vocabulary
from keras_fixedhead.files import loading, write_json
from training.engine.configs import ModelConfig, StartConfig
from training.engine.records import differences

_Task = TypeVar("_Task", bound=keras_hub.models.Task)

# The fields of a `ModelConfig` that decide what the weights are.
SHAPE = tuple(
    field.name
    for field in dataclasses.fields(ModelConfig)
    if field.name not in ("dropout", "dtype")
)

# A generous bound for what a preset holds besides its weights.
_OTHER_BYTES = 2**24

# The files that decide how the weights are used.
_DESCRIPTIONS = ("config", "preprocessor", "task", "tokenizer")

# What a shrunk preset keeps of the model that it was made of.
_ORIGIN = "origin.json"


def write_preset(
    folder: pathlib.Path,
    model: keras.layers.Layer,
    save: Callable[[pathlib.Path], None],
) -> None:
    """Writes the preset of `model` by calling `save` with a folder."""
    weights = sum(
        variable.value.dtype.size * variable.value.shape.num_elements()
        for variable in model.variables
    )
    free = shutil.disk_usage(folder.parent).free
    # HDF5 ends the whole process when the disk is full.
    if free < weights + _OTHER_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"the preset needs {weights + _OTHER_BYTES:,} bytes, and there "
            f"are {free:,}. The same command writes it when there is space",
            str(folder.parent),
        )
    partial = folder.with_name(f"{folder.name}.partial")
    # What an earlier try left.
    shutil.rmtree(partial, ignore_errors=True)
    try:
        save(partial)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def weights_sha256(preset: pathlib.Path, argument: str) -> str:
    """Returns the checksum of a preset's weights; errors say `argument`."""
    digest = hashlib.sha256()
    for path in _weights(preset, argument):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def preset_sha256(preset: pathlib.Path, argument: str) -> str:
    """Returns the checksum of all that decides the outputs of a preset."""
    digest = hashlib.sha256(weights_sha256(preset, argument).encode())
    for path in (
        *(preset / f"{name}.json" for name in _DESCRIPTIONS),
        *sorted(preset.glob("assets/**/*")),
    ):
        if path.is_file():
            digest.update(f"{path.relative_to(preset).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def read_embedder(preset: pathlib.Path, argument: str) -> FixedHeadTextEmbedder:
    """Reads a preset of any task, with a tokenizer, as an embedder."""
    # Without weights, KerasHub would suggest places to download from.
    _weights(preset, argument)
    with loading(preset, argument):
        embedder = FixedHeadTextEmbedder.from_preset(str(preset))
    if embedder.preprocessor is None:
        raise ValueError(
            f"`{argument}` must be a preset with a tokenizer, as "
            "`training.convert --task text_embedder` writes it. "
            f"Received: {str(preset)!r}"
        )
    return embedder


def read_task(
    preset: pathlib.Path, argument: str, kind: type[_Task], **arguments: Any
) -> _Task:
    """Reads a preset of the task class `kind`, with its tokenizer."""
    _weights(preset, argument)
    with loading(preset, argument):
        name = _task(preset).get("class_name")
        if name != kind.__name__:
            raise ValueError(
                f"`{argument}` must be a preset of a {kind.__name__}. "
                f"Received: {str(preset)!r}, of {name or 'an encoder alone'}"
            )
        return kind.from_preset(str(preset), **arguments)


def read_pooling(preset: pathlib.Path) -> str | None:
    """Returns how a preset's task pools tokens; None if it does not."""
    return _task(preset).get("config", {}).get("pooling_mode")


def _task(preset):
    path = preset / "task.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _weights(preset, argument):
    paths = sorted(preset.glob("*.weights.h5"))
    if not paths:
        raise ValueError(
            f"`{argument}` must be a preset folder, such as WORKDIR/preset of "
            f"an earlier run. Received: {str(preset)!r}"
        )
    return paths


def read_start(
    model: StartConfig,
) -> tuple[FixedHeadTextEmbedder | None, StartConfig]:
    """Returns the preset of `init`, if any, and the complete shape."""
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
    refuse_differences(model.init, theirs, theirs | given)
    return start, dataclasses.replace(model, **theirs)


def refuse_differences(init: pathlib.Path, there: dict, now: dict) -> None:
    """Raises an error unless the preset and the run have the same values."""
    if different := ", ".join(differences(there, now)):
        raise ValueError(
            f"`init` {str(init)!r} must have the values of the run. "
            f"Different: {different}"
        )


def read_tokenizer(
    start: FixedHeadTextEmbedder | None,
    vocabulary: pathlib.Path,
    lowercase: bool | None,
) -> FixedHeadTokenizer:
    """Returns the tokenizer of the start or, without one, of a vocabulary."""
    if start is None:
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


@dataclasses.dataclass(frozen=True)
class Origin:
    """The source of a shrunk encoder, and the parts of it that it keeps."""

    source_sha256: str  # see `preset_sha256`
    layers: Sequence[int]  # counted from 0
    channels: Sequence[int]

    def states(self, num_layers: int) -> tuple[int, ...]:
        """Which states of the source, of `num_layers`, its blocks lead to.

        State 0 is that of the embeddings, and `i + 1` that after block `i`.
        """
        return (*self.layers[1:], num_layers)

    def write(self, preset: pathlib.Path) -> None:
        write_json(preset / _ORIGIN, dataclasses.asdict(self))


def read_origin(preset: pathlib.Path, source_sha256: str) -> Origin:
    """Reads what `training.shrink` wrote about `init`; checks its source."""
    path = preset / _ORIGIN
    if not path.is_file():
        raise ValueError(
            "`state_weight` and `attention_weight` need an `init` that "
            "`training.shrink` wrote, which says what corresponds. "
            f"Received: {str(preset)!r} without {_ORIGIN}"
        )
    origin = Origin(**json.loads(path.read_text(encoding="utf-8")))
    if origin.source_sha256 != source_sha256:
        raise ValueError(
            "`teacher` must be the preset that `init` was shrunk from. "
            f"Received: another one than {str(preset)!r} names"
        )
    return origin
