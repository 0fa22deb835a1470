"""Preset folders: written completely or not at all, read, and compared."""

import errno
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import keras_hub

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.files import loading

_Task = TypeVar("_Task", bound=keras_hub.models.Task)

# A generous bound for what a preset holds besides its weights.
_OTHER_BYTES = 2**24

# The files that decide how the weights are used.
_DESCRIPTIONS = ("config", "preprocessor", "task", "tokenizer")


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
    """Returns the checksum of a preset's weights.

    Error messages call the preset `argument`, here and below.
    """
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
    """Reads a preset of the task class `kind`, with its tokenizer.

    `arguments` are those of `from_preset`, such as `dtype`.
    """
    _weights(preset, argument)
    file = preset / "task.json"
    name = None
    with loading(preset, argument):
        if file.is_file():
            name = json.loads(file.read_text(encoding="utf-8"))["class_name"]
        if name != kind.__name__:
            raise ValueError(
                f"`{argument}` must be a preset of a {kind.__name__}. "
                f"Received: {str(preset)!r}, of {name or 'an encoder alone'}"
            )
        return kind.from_preset(str(preset), **arguments)


def read_pooling(preset: pathlib.Path) -> str | None:
    """Returns how a preset's task pools tokens; None if it does not."""
    task = preset / "task.json"
    if not task.is_file():
        return None
    config = json.loads(task.read_text(encoding="utf-8"))["config"]
    return config.get("pooling_mode")


def _weights(preset, argument):
    paths = sorted(preset.glob("*.weights.h5"))
    if not paths:
        raise ValueError(
            f"`{argument}` must be a preset folder, such as WORKDIR/preset of "
            f"an earlier run. Received: {str(preset)!r}"
        )
    return paths
