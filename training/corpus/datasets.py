"""Records of files and of named datasets: a new kind of source goes here.

A named dataset begins with its kind, such as
tfds:NAME[/CONFIG][:VERSION][:SPLIT], of TensorFlow Datasets.
"""

import csv
import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from keras_fixedhead import beir

TABLES = (".tsv", ".txt", ".csv")

_TFDS_NAME = re.compile(
    r"(?P<name>[^:]+(?::\d+\.[\d*]+\.[\d*]+)?)(?::(?P<split>.+))?"
)


@dataclasses.dataclass(frozen=True)
class TfdsSplit:
    """A split, or part of one, of a prepared TensorFlow dataset.

    `num_bytes` is estimated from `num_examples`.
    """

    name: str
    split: str
    data_dir: str | None
    num_bytes: int
    num_examples: int

    @classmethod
    def open(
        cls, name: str, argument: str, data_dir: str | os.PathLike | None
    ) -> "TfdsSplit":
        """Opens the dataset `name`, without `tfds:`; prepares it if needed.

        `argument` is the flag that error messages name.
        """
        # Slow to import, and needed only by those who name a dataset.
        import tensorflow_datasets as tfds

        name, split = _parse_tfds(name, argument)
        data_dir = None if data_dir is None else os.fspath(data_dir)
        try:
            builder = tfds.builder(name, data_dir=data_dir)
        except tfds.core.DatasetNotFoundError as error:
            # The other lines list every dataset there is.
            raise ValueError(
                f"`{argument}` 'tfds:{name}': {str(error).splitlines()[0]}"
            ) from error
        builder.download_and_prepare()
        info = builder.info
        split = split or "train"
        num_examples = info.splits[split].num_examples
        in_all = sum(part.num_examples for part in info.splits.values())
        return cls(
            name=":".join(info.full_name.rsplit("/", 1)),
            split=split,
            data_dir=data_dir,
            num_bytes=int(info.dataset_size) * num_examples // max(in_all, 1),
            num_examples=num_examples,
        )

    @staticmethod
    def short_name(name: str) -> str:
        """Returns a name for metrics: the split, or else the dataset."""
        dataset, split = _parse_tfds(name, "source")
        return split or dataset

    def columns(self) -> Collection[str]:
        """Returns the names of all columns."""
        return self._builder().info.features.keys()

    def strings(self) -> Collection[str]:
        """Returns the names of the columns of strings."""
        return [
            name
            for name, feature in self._builder().info.features.items()
            if feature.shape == () and np.dtype(feature.np_dtype).kind == "O"
        ]

    def records(self, columns: Collection[str]) -> Iterator[dict]:
        """Yields some columns of the examples, as JSON values.

        A class is its name, or -1 if it has none.
        """
        features = self._builder().info.features
        for example in self._examples(columns):
            record = {name: _plain(value) for name, value in example.items()}
            for name, value in record.items():
                if hasattr(features[name], "int2str") and value >= 0:
                    record[name] = features[name].int2str(value)
            yield record

    def texts(self, column: str) -> Iterator[bytes]:
        """Yields the texts in a column."""
        for example in self._examples([column]):
            yield example[column]

    def parts(self) -> Sequence["TfdsSplit"]:
        """Divides a whole split into its files, for workers to read."""
        splits = self._builder().info.splits
        if self.split not in splits:
            return [self]
        return [
            dataclasses.replace(self, split=f"{self.split}[{n}shard]")
            for n in range(splits[self.split].num_shards)
        ]

    def overlaps(self, other: "Dataset") -> bool:
        """Whether two datasets have examples in common."""
        if not isinstance(other, TfdsSplit):
            return False
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

    def _examples(self, columns):
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


# Another kind of dataset has the methods of `TfdsSplit`, and is frozen, so that
# parts can be compared and recorded.
Dataset = TfdsSplit
KINDS: dict[str, type[Dataset]] = {"tfds": TfdsSplit}


def is_named(source: str | os.PathLike) -> bool:
    """Whether a source is a named dataset, such as `tfds:...`, or a file."""
    kind, colon, _ = os.fspath(source).partition(":")
    return bool(colon) and kind in KINDS


def open_dataset(
    source: str, argument: str, data_dir: str | os.PathLike | None = None
) -> Dataset:
    """Opens a named dataset; errors call it `argument`."""
    kind, _, name = source.partition(":")
    return KINDS[kind].open(name, argument, data_dir)


def source_name(source: str) -> str:
    """Returns the name of a source's metrics: its file's or its split's."""
    if is_named(source):
        kind, _, name = source.partition(":")
        short = KINDS[kind].short_name(name)
    else:
        short = pathlib.Path(source).stem
    return re.sub(r"\W+", "_", short).strip("_")


def read_records(
    source: str | os.PathLike,
    choose: Callable[[Collection[str], str], Collection[str]],
    header: bool = True,
    data_dir: str | os.PathLike | None = None,
) -> Iterator[tuple[str, dict]]:
    """Yields where each record of a source is, for errors, and the record.

    The source is a `.tsv` or `.txt` file (tabs and no quoting, like GLUE's),
    `.csv` (with quoting), `.jsonl`, or a named dataset. Where all records have
    the same columns, `choose` gets these and where they are, and returns those
    to read. Without a `header`, the columns of a table are "0", "1", ...
    """
    source = os.fspath(source)
    suffix = pathlib.Path(source).suffix
    if is_named(source):
        dataset = open_dataset(source, "source", data_dir)
        wanted = choose(dataset.columns(), source)
        for number, record in enumerate(dataset.records(wanted)):
            yield f"{source}[{number}]", record
    elif suffix == ".jsonl":
        yield from beir.read_records(source)
    elif suffix in TABLES:
        yield from _table_records(source, choose, header)
    else:
        kinds = ", ".join(f"{kind}:" for kind in KINDS)
        raise ValueError(
            f"{source}: must end in {', '.join(TABLES)} or .jsonl, or begin "
            f"with {kinds}"
        )


def _table_records(
    source: str, choose: Callable, header: bool
) -> Iterator[tuple[str, dict]]:
    rows = _table_rows(source)
    if not header:
        for where, row in rows:
            yield where, {str(n): value for n, value in enumerate(row)}
        return
    where, names = next(rows, (source, []))
    choose(names, where)
    for where, row in rows:
        if len(row) != len(names):
            raise ValueError(
                f"{where}: must have {len(names)} columns, like the header. "
                f"Received {len(row)}: {str(row)[:200]}"
            )
        # Reversed, so that the first of two columns of one name counts.
        yield where, dict(zip(reversed(names), reversed(row)))


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


def _parse_tfds(name: str, argument: str) -> tuple[str, str | None]:
    """Returns the dataset (with config and version) and the split, if any."""
    match = _TFDS_NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"`{argument}` must be tfds:NAME[/CONFIG][:VERSION][:SPLIT]. "
            f"Received: 'tfds:{name}'"
        )
    return match["name"], match["split"]


def _plain(value):
    """Returns a NumPy value as a JSON value."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        return [_plain(part) for part in value]
    return value.item()
