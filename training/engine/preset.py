"""Presets on disk: there whole, or not at all."""

import errno
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable

import keras

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.files import loading

# What a preset takes beside its weights, generously.
_OTHER_BYTES = 2**24

# What says how the weights are used; other files are for people.
_DESCRIPTIONS = ("config", "preprocessor", "task", "tokenizer")


def write_preset(
    folder: pathlib.Path,
    model: keras.layers.Layer,
    save: Callable[[pathlib.Path], None],
):
    """Writes the preset of a model.

    Args:
        folder: What is to appear. What an earlier try left is removed.
        model: Holds the weights that will be written.
        save: Writes the preset into the folder it is given.

    Raises:
        OSError: There is no space for it, or the folder cannot be written.
    """
    weights = sum(
        variable.value.dtype.size * variable.value.shape.num_elements()
        for variable in model.variables
    )
    free = shutil.disk_usage(folder.parent).free
    # HDF5 takes the whole process down where a disk is full.
    if free < weights + _OTHER_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"the preset needs {weights + _OTHER_BYTES:,} bytes, and there "
            f"are {free:,}. The same command writes it when there is space",
            str(folder.parent),
        )
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        save(partial)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def weights_sha256(preset: pathlib.Path, argument: str) -> str:
    """The checksum of a preset's weights.

    Args:
        preset: Its folder.
        argument: What the user calls it, for messages.

    Raises:
        ValueError: It is none.
    """
    digest = hashlib.sha256()
    for path in _weights(preset, argument):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_embedder(preset: pathlib.Path, argument: str) -> FixedHeadTextEmbedder:
    """Reads a preset as an embedder: its own, or that of its encoder.

    Args:
        preset: Its folder.
        argument: What the user calls it, for messages.

    Raises:
        ValueError: It is none, or has no tokenizer.
    """
    # KerasHub would name places to download from.
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


def read_task(preset: pathlib.Path, argument: str, kind: type, **arguments):
    """Reads a preset of a task with its tokenizer.

    Args:
        preset: Its folder.
        argument: What the user calls it, for messages.
        kind: The class of the task.
        **arguments: Further arguments of `from_preset`, such as `dtype`.

    Raises:
        ValueError: It is none, or of another task.
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
    """How the task of a preset pools tokens; `None` where it does not.

    Args:
        preset: Its folder.
    """
    task = preset / "task.json"
    if not task.is_file():
        return None
    config = json.loads(task.read_text(encoding="utf-8"))["config"]
    return config.get("pooling_mode")


def preset_sha256(preset: pathlib.Path, argument: str) -> str:
    """The checksum of all that decides what a preset computes from texts.

    Args:
        preset: Its folder.
        argument: What the user calls it, for messages.

    Raises:
        ValueError: It is none.
    """
    digest = hashlib.sha256(weights_sha256(preset, argument).encode())
    for path in (
        *(preset / f"{name}.json" for name in _DESCRIPTIONS),
        *sorted(preset.glob("assets/**/*")),
    ):
        if path.is_file():
            digest.update(f"{path.relative_to(preset).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _weights(preset, argument):
    """The files of a preset's weights."""
    paths = sorted(preset.glob("*.weights.h5"))
    if not paths:
        raise ValueError(
            f"`{argument}` must be a preset folder, such as WORKDIR/preset of "
            f"an earlier run. Received: {str(preset)!r}"
        )
    return paths
