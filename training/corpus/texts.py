"""Texts, and labelled texts and pairs: from files and named datasets."""

import collections
import dataclasses
import hashlib
import json
import os
import re
import typing
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from keras_fixedhead import beir
from training.corpus.datasets import is_named, read_records

# Columns of MNLI and SNLI, as published and in TensorFlow Datasets, and of
# GLUE's other tasks.
_KNOWN_COLUMNS = (
    ("sentence1", "sentence2", "gold_label"),
    ("sentence1", "sentence2", "label"),
    ("premise", "hypothesis", "label"),
    ("sentence", "label"),
    ("text", "label"),
)

# Stand for a label where annotators disagreed or labels are secret.
_NO_LABEL = ("-", "-1")

NO_LABEL = "no label"

_INTEGER = re.compile(r"-?\d+")


@dataclasses.dataclass(frozen=True)
class Labelled:
    """N labelled texts, or pairs of texts if `second` is not `None`.

    `labels` is an int32 array `[N]` of indices into `names`; `left_out` counts
    the examples that were left out, by reason.
    """

    first: list[str]
    second: list[str] | None
    labels: np.ndarray
    names: tuple[str, ...]
    left_out: collections.Counter[str]

    def __len__(self):
        return len(self.first)

    def renumbered(self, names: Sequence[str], source: str) -> "Labelled":
        """Returns the same examples, labelled by index into other `names`."""
        numbers = {name: number for number, name in enumerate(names)}
        unknown = [
            self.names[label]
            for label in np.unique(self.labels)
            if self.names[label] not in numbers
        ]
        if unknown:
            raise ValueError(
                f"{source} must have the labels {', '.join(names)} of the "
                "training data, or numbers that --labels gives names. "
                f"Received: {', '.join(unknown)}"
            )
        renumber = np.array([numbers.get(name, -1) for name in self.names])
        return dataclasses.replace(
            self,
            labels=renumber[self.labels].astype(np.int32),
            names=tuple(names),
        )

    @property
    def sha256(self) -> str:
        """The checksum of texts and labels."""
        content = [self.first, self.second, self.labels.tolist(), self.names]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class Row(typing.NamedTuple):
    """An example: where it is (for errors), one or two texts, the label."""

    where: str
    texts: list[str]
    label: str | None


def read_examples(
    source: str | os.PathLike,
    columns: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Labelled:
    """Reads the examples of `read_rows` that have a label.

    `labels` names the classes, in the order of the numbers that may stand for
    them. By default they are the labels found: names in alphabetical order,
    numbers in numerical order.
    """
    source = os.fspath(source)
    rows = []
    left_out: collections.Counter[str] = collections.Counter()
    for row in read_rows(source, columns):
        if row.label is None:
            left_out[NO_LABEL] += 1
        else:
            rows.append(row)
    if not rows:
        raise ValueError(
            f"{source} must hold an example with a label. Received: "
            f"{left_out[NO_LABEL]} without"
        )
    names = tuple(labels)
    if not names:
        found = {row.label for row in rows if row.label is not None}
        numeric = all(_INTEGER.fullmatch(label) for label in found)
        names = tuple(sorted(found, key=int) if numeric else sorted(found))
    first, *second = map(list, zip(*(row.texts for row in rows)))
    return Labelled(
        first,
        second[0] if second else None,
        np.array(_class_numbers(rows, names), np.int32),
        names,
        left_out,
    )


def read_rows(
    source: str | os.PathLike,
    columns: Sequence[str] = (),
    labelled: bool = True,
) -> Iterator[Row]:
    """Reads texts in order; the label is `None` where it is `-` or -1.

    `source` is one of `read_records`. `columns` are those, or the keys, of the
    text, of the second text if there is one and, if `labelled`, of the label;
    numbers, from 0, for a table without a header. They may be omitted if they
    are named as in MNLI, SNLI or GLUE.
    """
    source = os.fspath(source)
    if columns and len(columns) - labelled not in (1, 2):
        raise ValueError(
            "`columns` must be those of a text, perhaps a second one, and "
            f"{'the' if labelled else 'no'} label. "
            f"Received: {' '.join(columns)}"
        )

    def choose(available, where):
        return _choose(available, columns, where, labelled)

    header = not columns or not all(name.isdecimal() for name in columns)
    for where, record in read_records(source, choose, header):
        columns = choose(record, where)
        label = _label(record, columns[-1], where) if labelled else None
        keys = columns[:-1] if labelled else columns
        texts = [beir.text(record, key, where) for key in keys]
        yield Row(where, texts, None if label in _NO_LABEL else label)


def _class_numbers(rows, names):
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for where, _, label in rows:
        number = numbers.get(label)
        if number is None and _INTEGER.fullmatch(label):
            number = int(label)
        if number is None or not 0 <= number < len(names):
            raise ValueError(
                f"{where}: the label must be one of {', '.join(names)}, or a "
                f"number from 0 to {len(names) - 1}. Received: {label!r}"
            )
        found.append(number)
    return found


def _choose(
    available: Collection[str],
    columns: Sequence[str],
    where: str,
    labelled: bool,
) -> Sequence[str]:
    """Returns `columns`, or known ones, if all of them are available."""
    known = [columns] if columns else _KNOWN_COLUMNS
    if not labelled and not columns:
        known = [names[:-1] for names in known]
    for names in known:
        if all(name in available for name in names):
            return names
    wanted = " ".join(columns) or " ".join(known[0]) + ", or --columns"
    raise ValueError(
        f"{where}: must have the columns {wanted}. "
        f"Received: {' '.join(map(str, available))[:200]}"
    )


def _label(record: dict, key: str, where: str) -> str:
    value = record[key]
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(
            f"{where}: {key!r} must be a name or a whole number. "
            f"Received: {value!r}"
        )
    if value == "":
        raise ValueError(f"{where}: {key!r} must not be empty.")
    return str(value)


def read_texts(
    path: str | os.PathLike,
    most: int | None = None,
    say: Callable[[str], None] | None = None,
) -> list[str]:
    """Reads the texts that are not blank, at most `most`.

    The file has a text a line. A `.jsonl` file, such as a BEIR corpus, or a
    named dataset has `text` and perhaps `title`. `say` is told how many texts
    were blank.
    """
    path = os.fspath(path)
    texts, blank = [], 0
    for text in _texts(path):
        if not text:
            blank += 1
            continue
        texts.append(text)
        if len(texts) == most:
            break
    if not texts:
        raise ValueError(f"{path} has no text in it")
    if blank and say is not None:
        say(f"{path}: {blank:,} left out as blank")
    return texts


def _texts(source: str) -> Iterator[str]:
    if is_named(source) or source.endswith(".jsonl"):
        for where, record in read_records(source, _text_and_title):
            text = beir.text(record, "text", where)
            if "title" in record:
                text = f"{beir.text(record, 'title', where)} {text}"
            yield text.strip()
        return
    with open(source, encoding="utf-8") as lines:
        try:
            for line in lines:
                yield line.strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{source} is not UTF-8: {error}") from error


def _text_and_title(available, where):
    """Chooses the columns of a dataset."""
    if "text" not in available:
        raise ValueError(
            f"{where}: must have the column text. "
            f"Received: {' '.join(available)}"
        )
    return {"text", "title"} & set(available)
