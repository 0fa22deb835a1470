"""TensorFlow's checkpoints as files, with errors that name them."""

import pathlib

import tensorflow as tf

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

_USUAL = "bert_model.ckpt"

# What a `tf.train.CheckpointReader` raises; an IndexError is a short file.
_ERRORS = (tf.errors.OpError, RuntimeError, LookupError, ValueError)


def find_checkpoint(path):
    """Finds a checkpoint.

    Args:
        path: a checkpoint's prefix (its files' names up to `.index`), or a
            folder with `bert_model.ckpt.index` or one `*.index` alone.

    Returns:
        The prefix, a `pathlib.Path`.

    Raises:
        FileNotFoundError: There is none, or it has no data file.
        ValueError: There are several.
    """
    path = pathlib.Path(path)
    prefix = path
    if path.is_dir():
        indices = sorted(path.glob("*.index"))
        names = [index.name.removesuffix(".index") for index in indices]
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
    elif not _with_ending(path, ".index").exists():
        raise FileNotFoundError(
            f"{path} is neither a folder nor the prefix of a checkpoint: "
            f"there is no {_with_ending(path, '.index')}"
        )
    start = f"{prefix.name}.data-"
    if not any(x.name.startswith(start) for x in prefix.parent.iterdir()):
        raise FileNotFoundError(
            f"{_with_ending(prefix, '.index')} has no data beside it: no "
            f"{start}*"
        )
    return prefix


def open_checkpoint(prefix):
    """Opens a checkpoint.

    Args:
        prefix: what `find_checkpoint` returns.

    Returns:
        A `tf.train.CheckpointReader`.

    Raises:
        ValueError: Its index is damaged.
    """
    try:
        return tf.train.load_checkpoint(str(prefix))
    except _ERRORS as error:
        raise ValueError(
            f"{_with_ending(prefix, '.index')} is damaged: {error}"
        ) from error


def read_tensor(reader, name, prefix):
    """Reads a tensor.

    Raises:
        ValueError: The checkpoint's data are damaged, or not complete.
    """
    try:
        return reader.get_tensor(name)
    except _ERRORS as error:
        raise ValueError(
            f"{name} cannot be read: {prefix}.data-* are damaged or not "
            f"complete: {error}"
        ) from error


def _with_ending(prefix, ending):
    return prefix.with_name(prefix.name + ending)
