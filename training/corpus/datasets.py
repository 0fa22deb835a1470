"""Datasets of TensorFlow Datasets by the names that flags give them."""

import os
import re

# What starts such a name.
PREFIX = "tfds:"

# NAME[/CONFIG][:VERSION] and a split.
_NAME = re.compile(
    r"(?P<name>[^:]+(?::\d+\.[\d*]+\.[\d*]+)?)(?::(?P<split>.+))?"
)


def parse_name(name: str, argument: str) -> tuple[str, str | None]:
    """A dataset's name, with configuration and version, and its split.

    Args:
        name: `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`.
        argument: What the user calls it, for messages.

    Raises:
        ValueError: It is not as described.
    """
    match = _NAME.fullmatch(name.removeprefix(PREFIX))
    if match is None:
        raise ValueError(
            f"`{argument}` must be {PREFIX}NAME[/CONFIG][:VERSION][:SPLIT]. "
            f"Received: {name!r}"
        )
    return match["name"], match["split"]


def open_dataset(
    name: str, argument: str, data_dir: str | os.PathLike | None = None
):
    """Finds a dataset, and prepares it if it is not.

    Args:
        name: `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`.
        argument: What the user calls it, for messages.
        data_dir: Folder of datasets; `None` is their default.

    Returns:
        A `tfds.core.DatasetBuilder`, and the split, `train` where none is
        named. Whether there is such a split is not checked.

    Raises:
        OSError: The dataset cannot be prepared.
        ValueError: The name is not as described, or of no dataset.
    """
    # Brings TensorFlow, which who has files does not need here.
    import tensorflow_datasets as tfds

    dataset, split = parse_name(name, argument)
    data_dir = None if data_dir is None else os.fspath(data_dir)
    try:
        builder = tfds.builder(dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        # Its other lines list every dataset there is.
        raise ValueError(
            f"`{argument}` {name!r}: {str(error).splitlines()[0]}"
        ) from error
    builder.download_and_prepare()
    return builder, split or "train"
