"""Records of tables and of named datasets.

A named dataset is tfds:NAME[/CONFIG][:VERSION][:SPLIT], of TensorFlow Datasets.
"""

import csv
import dataclasses
import os
import pathlib
import re
from collections.abc import Collection, Iterator
from typing import Self

import numpy as np

from keras_fixedhead import beir

TABLES = (".tsv", ".txt", ".csv")

_TFDS_NAME = re.compile(
    r"tfds:(?P<name>[^:]+(?::\d+\.[\d*]+\.[\d*]+)?)(?::(?P<split>.+))?"
)


@dataclasses.dataclass(frozen=True)
class TfdsSplit:
    """A split, or part of one; `num_bytes` is an estimate."""

    name: str
    split: str
    data_dir: str | None
    num_bytes: int
    num_examples: int

    def strings(self) -> list[str]:
        """Returns the names of the columns of strings."""
        return [
            name
            for name, feature in self._builder().info.features.items()
            if feature.shape == () and np.dtype(feature.np_dtype).kind == "O"
        ]

    def examples(self, columns: Collection[str]) -> Iterator[dict]:
        """Yields some columns of the examples, as NumPy values."""
        import tensorflow as tf
        import tensorflow_datasets as tfds

        wanted = dict.fromkeys(columns, True)
        try:
            yield from (
                self._builder()
                .as_dataset(
                    split=self.split,
                    # Otherwise small datasets stay in memory.
                    read_config=tfds.ReadConfig(try_autocache=False),
                    decoders=tfds.decode.PartialDecoding(wanted),
                )
                .as_numpy_iterator()
            )
        except tf.errors.OpError as error:
            raise OSError(f"{self}: cannot be read: {error}") from error

    def records(self, columns: Collection[str] | None) -> Iterator[dict]:
        """Yields the columns that it has of these, or all, as JSON values.

        A class is its name, or -1 if it has none.
        """
        features = self._builder().info.features
        names = features.keys() & (columns or features.keys())
        if not names:
            wanted = ", ".join(sorted(columns or ()))
            raise ValueError(
                f"{self}: must have some of the columns {wanted}. "
                f"Received: {', '.join(features)}"
            )
        for example in self.examples(names):
            record = {name: _plain(value) for name, value in example.items()}
            for name, value in record.items():
                if hasattr(features[name], "int2str") and value >= 0:
                    record[name] = features[name].int2str(value)
            yield record

    def parts(self) -> list[Self]:
        """Divides a whole split into its files, for workers to read."""
        splits = self._builder().info.splits
        if self.split not in splits:
            return [self]
        return [
            dataclasses.replace(self, split=f"{self.split}[{n}shard]")
            for n in range(splits[self.split].num_shards)
        ]

    def overlaps(self, other: "TfdsSplit") -> bool:
        """Whether two datasets have examples in common."""
        if (self.name, self.data_dir) != (other.name, other.data_dir):
            return False
        splits = self._builder().info.splits
        return any(
            a.filename == b.filename
            and a.skip < b.skip + b.take
            and b.skip < a.skip + a.take
            for a in splits[self.split].file_instructions
            for b in splits[other.split].file_instructions
        )

    def __str__(self) -> str:
        return f"tfds:{self.name}:{self.split}"

    def _builder(self):
        import tensorflow_datasets as tfds

        return tfds.builder(self.name, data_dir=self.data_dir)


def is_named(source: str | os.PathLike) -> bool:
    """Whether a source is a named dataset, `tfds:...`, or a file."""
    return os.fspath(source).startswith("tfds:")


def open_dataset(
    source: str, data_dir: str | os.PathLike | None = None
) -> TfdsSplit:
    """Opens a named dataset; prepares it if needed."""
    # Slow to import, and needed only by those who name a dataset.
    import tensorflow_datasets as tfds

    match = _TFDS_NAME.fullmatch(source)
    if match is None:
        raise ValueError(
            "`source` must be tfds:NAME[/CONFIG][:VERSION][:SPLIT]. "
            f"Received: {source!r}"
        )
    data_dir = None if data_dir is None else os.fspath(data_dir)
    try:
        builder = tfds.builder(match["name"], data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        # The other lines list every dataset there is.
        reason = str(error).splitlines()[0]
        raise ValueError(f"`source` {source!r}: {reason}") from error
    builder.download_and_prepare()
    info = builder.info
    split = match["split"] or "train"
    num_examples = info.splits[split].num_examples
    in_all = info.splits.total_num_examples
    return TfdsSplit(
        name=":".join(info.full_name.rsplit("/", 1)),
        split=split,
        data_dir=data_dir,
        num_bytes=int(info.dataset_size) * num_examples // max(in_all, 1),
        num_examples=num_examples,
    )


def source_name(source: str) -> str:
    """Returns the name of a source's metrics: its file's or its split's."""
    short = pathlib.Path(source).stem
    if match := _TFDS_NAME.fullmatch(source):
        short = match["split"] or match["name"]
    return re.sub(r"\W+", "_", short).strip("_")


def read_records(
    source: str | os.PathLike,
    columns: Collection[str] | None = None,
    header: bool = True,
) -> Iterator[tuple[str, dict]]:
    """Yields where each record of a source is, for errors, and the record.

    The source is a `.tsv` or `.txt` file (tabs and no quoting, like GLUE's),
    `.csv` (with quoting), `.jsonl`, or a named dataset, of which only `columns`
    are read. Without a `header`, the columns of a table are "0", "1", ...
    """
    source = os.fspath(source)
    suffix = pathlib.Path(source).suffix
    if is_named(source):
        records = open_dataset(source).records(columns)
        for number, record in enumerate(records):
            yield f"{source}[{number}]", record
    elif suffix == ".jsonl":
        yield from beir.read_records(source)
    elif suffix in TABLES:
        yield from _table_records(source, header)
    else:
        raise ValueError(
            f"{source}: must end in {', '.join(TABLES)} or .jsonl, or begin "
            "with tfds:"
        )


def _table_records(source: str, header: bool) -> Iterator[tuple[str, dict]]:
    rows = _table_rows(source)
    names = next(rows, ("", []))[1] if header else None
    for where, row in rows:
        if names is not None and len(row) != len(names):
            raise ValueError(
                f"{where}: must have {len(names)} columns, like the header. "
                f"Received {len(row)}: {str(row)[:200]}"
            )
        yield where, dict(zip(names or map(str, range(len(row))), row))


def _table_rows(source: str) -> Iterator[tuple[str, list[str]]]:
    """Yields ("file:line", values) of the lines that are not empty."""
    # Spaces and other kinds of line feeds belong to the text.
    with open(source, encoding="utf-8-sig", newline="\n") as lines:
        try:
            if source.endswith(".csv"):
                table = csv.reader(lines, strict=True)
                for row in table:
                    if row:
                        yield f"{source}:{table.line_num}", row
                return
            for number, line in enumerate(lines, start=1):
                line = line.removesuffix("\n").removesuffix("\r")
                if line:
                    yield f"{source}:{number}", line.split("\t")
        except UnicodeDecodeError as error:
            raise ValueError(f"{source} is not UTF-8: {error}") from error
        except csv.Error as error:
            raise ValueError(f"{source}:{table.line_num}: {error}") from error


def _plain(value):
    """Returns a NumPy value as a JSON value."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        return [_plain(part) for part in value]
    return value.item()
