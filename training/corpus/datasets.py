"""TensorFlow Datasets by name: tfds:NAME[/CONFIG][:VERSION][:SPLIT]."""

import os
import re
from collections.abc import Collection, Iterator

PREFIX = "tfds:"

_NAME = re.compile(
    r"(?P<name>[^:]+(?::\d+\.[\d*]+\.[\d*]+)?)(?::(?P<split>.+))?"
)


def parse_name(name: str, argument: str) -> tuple[str, str | None]:
    """Returns the dataset (with config and version) and the split, if any."""
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
    """Prepares a dataset if needed; returns its builder and the split."""
    # Slow to import, and needed only by those who name a dataset.
    import tensorflow_datasets as tfds

    dataset, split = parse_name(name, argument)
    data_dir = None if data_dir is None else os.fspath(data_dir)
    try:
        builder = tfds.builder(dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        # The other lines list every dataset there is.
        raise ValueError(
            f"`{argument}` {name!r}: {str(error).splitlines()[0]}"
        ) from error
    builder.download_and_prepare()
    return builder, split or "train"


def read_dataset(
    builder, split: str, name: str, features: Collection[str]
) -> Iterator[dict]:
    """Yields some features of a split's examples, as NumPy values."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    try:
        yield from builder.as_dataset(
            split=split,
            # Otherwise small datasets stay in memory.
            read_config=tfds.ReadConfig(try_autocache=False),
            decoders=tfds.decode.PartialDecoding(dict.fromkeys(features, True)),
        ).as_numpy_iterator()
    except tf.errors.OpError as error:
        raise OSError(f"{name}: cannot be read: {error}") from error
