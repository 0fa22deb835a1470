"""Labelled texts and pairs of texts, as files and datasets have them.

Shape letters: N examples.
"""

import collections
import csv
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import typing
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_fixedhead import beir
from training.corpus.datasets import PREFIX, open_dataset

# What columns are called in public data: MNLI and SNLI, as published and in
# TensorFlow Datasets; GLUE's other tasks.
_KNOWN_COLUMNS = (
    ("sentence1", "sentence2", "gold_label"),
    ("sentence1", "sentence2", "label"),
    ("premise", "hypothesis", "label"),
    ("sentence", "label"),
    ("text", "label"),
)

# What stands where annotators did not agree, or labels are kept secret.
_NO_LABEL = ("-", "-1")

NO_LABEL = "no label"

_INTEGER = re.compile(r"-?\d+")

_TABLES = (".tsv", ".txt", ".csv")


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Texts, or pairs of texts, each of a class.

    Attributes:
        first: List of N strings.
        second: List of N strings, or `None` where examples are single texts.
        labels: int32 array `[N]`, places in `names`.
        names: The classes.
        left_out: How many examples were left out for which reason.
    """

    first: list[str]
    second: list[str] | None
    labels: np.ndarray
    names: tuple[str, ...]
    left_out: collections.Counter[str]

    def __len__(self):
        return len(self.first)

    def renumbered(self, names: Sequence[str], source: str) -> "Labelled":
        """The same examples, their labels as places in other names.

        Args:
            names: The classes of a model.
            source: What was read, for messages.

        Raises:
            ValueError: An example is of no such class.
        """
        places = {name: place for place, name in enumerate(names)}
        unknown = [
            self.names[label]
            for label in np.unique(self.labels)
            if self.names[label] not in places
        ]
        if unknown:
            raise ValueError(
                f"{source} must have the labels {', '.join(names)} of the "
                "training data, or numbers that --labels gives names. "
                f"Received: {', '.join(unknown)}"
            )
        place = np.array([places.get(name, -1) for name in self.names])
        return dataclasses.replace(
            self,
            labels=place[self.labels].astype(np.int32),
            names=tuple(names),
        )

    @property
    def sha256(self) -> str:
        """The checksum of texts and labels."""
        content = [self.first, self.second, self.labels.tolist(), self.names]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_examples(
    source: str | os.PathLike,
    columns: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Labelled:
    """Reads labelled texts.

    Examples whose label is `-` or -1 have none and are left out.

    Args:
        source: A `.tsv` file (tabs between columns, and no quoting, as
            GLUE's), `.csv` (with quoting), `.jsonl`, or
            `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`.
        columns: The columns, or keys, of the text, of the second text where
            there is one, and of the label; numbers, from 0 on, for a file
            without a header. None are needed where they are called as in
            MNLI (`sentence1`, `sentence2`, `gold_label`), SNLI or GLUE.
        labels: The names of the classes, in the order of the numbers that
            may stand for them. Without, all that are found: names in
            alphabetical order, numbers in theirs.

    Raises:
        OSError: The file cannot be read, or the dataset not prepared.
        ValueError: It is not as described; names the file and the line.
    """
    source = os.fspath(source)
    texts, found = [], []
    left_out: collections.Counter[str] = collections.Counter()
    for where, row, label in read_rows(source, columns):
        if label is None:
            left_out[NO_LABEL] += 1
        else:
            texts.append(row)
            found.append((where, label))
    if not texts:
        raise ValueError(
            f"{source} must hold an example with a label. Received: "
            f"{left_out[NO_LABEL]} without"
        )
    first, *second = map(list, zip(*texts))
    names = tuple(labels) or _names(label for _, label in found)
    return Labelled(
        first,
        second[0] if second else None,
        np.array(_numbers(found, names), np.int32),
        names,
        left_out,
    )


class Row(typing.NamedTuple):
    """An example as it is in its source.

    Attributes:
        where: What a message says of where it is.
        texts: One or two strings.
        label: Its label, or `None` where it has none.
    """

    where: str
    texts: list[str]
    label: str | None


def read_rows(
    source: str | os.PathLike,
    columns: Sequence[str] = (),
    labelled: bool = True,
) -> Iterator[Row]:
    """Reads texts, also those without a label.

    Args:
        source: As in `read_examples`.
        columns: As in `read_examples`; of the texts alone where there are no
            labels.
        labelled: Whether there is a column of labels.

    Yields:
        `Row`s, in the order of the source.

    Raises:
        OSError: The file cannot be read, or the dataset not prepared.
        ValueError: It is not as described; names the file and the line.
    """
    source = os.fspath(source)
    if columns and len(columns) - labelled not in (1, 2):
        raise ValueError(
            "`columns` must be those of a text, perhaps a second one, and "
            f"{'the' if labelled else 'no'} label. "
            f"Received: {' '.join(columns)}"
        )
    suffix = pathlib.Path(source).suffix
    if source.startswith(PREFIX):
        read = _read_dataset
    elif suffix == ".jsonl":
        read = _read_json_lines
    elif suffix in _TABLES:
        read = _read_table
    else:
        raise ValueError(
            f"{source}: must end in {', '.join(_TABLES)} or .jsonl, or begin "
            f"with {PREFIX}"
        )
    for where, texts, label in read(source, columns, labelled):
        yield Row(where, texts, None if label in _NO_LABEL else label)


def _names(labels):
    """The classes that labels are of, in order."""
    different = set(labels)
    if all(map(_INTEGER.fullmatch, different)):
        return tuple(sorted(different, key=int))
    return tuple(sorted(different))


def _numbers(found, names):
    """The places of labels in the names of classes."""
    places = {name: place for place, name in enumerate(names)}
    numbers = []
    for where, label in found:
        place = places.get(label)
        if place is None and _INTEGER.fullmatch(label):
            place = int(label)
        if place is None or not 0 <= place < len(names):
            raise ValueError(
                f"{where}: the label must be one of {', '.join(names)}, or a "
                f"number from 0 to {len(names) - 1}. Received: {label!r}"
            )
        numbers.append(place)
    return numbers


def _choose(
    there, columns, where, labelled
) -> tuple[tuple[str, ...], str | None]:
    """The columns to read, of those that are there: of texts and labels."""
    known = [tuple(columns)] if columns else _KNOWN_COLUMNS
    if not labelled and not columns:
        known = [names[:-1] for names in known]
    for names in known:
        if set(names) <= set(there):
            return (names[:-1], names[-1]) if labelled else (names, None)
    wanted = " ".join(columns) or " ".join(known[0]) + ", or --columns"
    raise ValueError(
        f"{where}: must have the columns {wanted}. "
        f"Received: {' '.join(map(str, there))[:200]}"
    )


def _label(value, key, where) -> str:
    """A label as its name, which may be a number's."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(
            f"{where}: {key!r} must be a name or a whole number. "
            f"Received: {value!r}"
        )
    if value == "":
        raise ValueError(f"{where}: {key!r} must not be empty.")
    return str(value)


def _read_json_lines(source, columns, labelled) -> Iterator:
    """Yields ("file:line", texts, label or None)."""
    chosen = None
    for where, record in beir.read_records(source):
        chosen = chosen or _choose(record, columns, where, labelled)
        keys, label = chosen
        if labelled and label not in record:
            raise ValueError(
                f"{where}: must have {label!r}. Received: {str(record)[:200]}"
            )
        yield (
            where,
            [beir.text(record, key, where) for key in keys],
            _label(record[label], label, where) if labelled else None,
        )


def _read_table(source, columns, labelled) -> Iterator:
    """Yields ("file:line", texts, label or None)."""
    rows = _rows(source)
    numbers = [column for column in columns if column.isdecimal()]
    if columns and len(numbers) == len(columns):
        places = [int(number) for number in numbers]
        label = columns[-1]
        header = None
    else:
        where, header = next(rows, (source, []))
        names, label = _choose(header, columns, where, labelled)
        places = [header.index(name) for name in names]
        if labelled:
            places.append(header.index(label))
    for where, row in rows:
        if header is None and len(row) <= max(places):
            raise ValueError(
                f"{where}: must have the columns {' '.join(columns)}, counted "
                f"from 0. Received {len(row)}: {str(row)[:200]}"
            )
        if header is not None and len(row) != len(header):
            raise ValueError(
                f"{where}: must have {len(header)} columns, as the header. "
                f"Received {len(row)}: {str(row)[:200]}"
            )
        texts = [row[place] for place in places]
        value = _label(texts.pop(), label, where) if labelled else None
        yield where, texts, value


def _rows(source):
    """Yields ("file:line", strings) of the lines that are not empty."""
    # Spaces and line feeds of other kinds are part of the text.
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


def _read_dataset(source, columns, labelled) -> Iterator:
    """Yields (source and number, texts, label or None)."""
    import tensorflow_datasets as tfds

    builder, split = open_dataset(source, "source")
    features = builder.info.features
    names, label = _choose(features, columns, source, labelled)
    wanted = [*names, label] if labelled else names
    try:
        examples = builder.as_dataset(
            split=split,
            # Or small datasets would be held in memory.
            read_config=tfds.ReadConfig(try_autocache=False),
            decoders=tfds.decode.PartialDecoding(dict.fromkeys(wanted, True)),
        )
        for number, example in enumerate(examples.as_numpy_iterator()):
            where = f"{source}[{number}]"
            texts = [example[name].decode() for name in names]
            if not labelled:
                yield where, texts, None
                continue
            value = example[label]
            if isinstance(value, bytes):
                value = value.decode()
            elif value >= 0 and hasattr(features[label], "int2str"):
                value = features[label].int2str(int(value))
            else:
                value = int(value)
            yield where, texts, _label(value, label, where)
    except tf.errors.OpError as error:
        raise OSError(f"{source}: cannot be read: {error}") from error
