"""Texts, and labelled texts and pairs: from files and named datasets."""

import dataclasses
import hashlib
import json
import os
import re
import typing
from collections.abc import Callable, Iterator, Sequence

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

_INTEGER = re.compile(r"-?\d+")


@dataclasses.dataclass(frozen=True)
class Labelled:
    """N labelled texts in one column, or pairs of texts in two.

    `labels` is an int32 array `[N]` of indices into `names`; `left_out` is the
    number of examples without a label.
    """

    columns: list[list[str]]
    labels: np.ndarray
    names: tuple[str, ...]
    left_out: int

    def __len__(self):
        return len(self.labels)

    @property
    def sha256(self) -> str:
        """The checksum of texts and labels."""
        first, second = [*self.columns, None][:2]
        content = [first, second, self.labels.tolist(), self.names]
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
    numbered: bool = True,
) -> Labelled:
    """Reads the examples of `read_rows` that have a label.

    `labels` names the classes, in the order of the numbers that may stand for
    them if `numbered`. By default they are the labels found: names in
    alphabetical order, numbers in numerical order.
    """
    every_row = list(read_rows(source, columns))
    rows = [row for row in every_row if row.label is not None]
    if not rows:
        raise ValueError(
            f"{source} must hold an example with a label. Received: "
            f"{len(every_row)} without"
        )
    names = tuple(labels)
    if not names:
        found = {str(row.label) for row in rows}
        numeric = all(_INTEGER.fullmatch(label) for label in found)
        names = tuple(sorted(found, key=int) if numeric else sorted(found))
    numbers = {name: number for number, name in enumerate(names)}
    for number in range(len(names) if numbered else 0):
        numbers.setdefault(str(number), number)
    for where, _, label in rows:
        if label not in numbers:
            raise ValueError(
                f"{where}: the label must be one of {', '.join(numbers)} "
                "(`labels` gives numbers names, in their order). "
                f"Received: {label!r}"
            )
    return Labelled(
        list(map(list, zip(*(row.texts for row in rows)))),
        np.array([numbers[str(row.label)] for row in rows], np.int32),
        names,
        len(every_row) - len(rows),
    )


def read_rows(
    source: str | os.PathLike,
    columns: Sequence[str] = (),
    labelled: bool = True,
) -> Iterator[Row]:
    """Reads texts in order; the label is `None` where it is `-` or -1.

    `columns` are as in `ClassificationConfig`, without the label's if there
    are no labels.
    """
    if columns and len(columns) - labelled not in (1, 2):
        raise ValueError(
            "`columns` must be those of a text, perhaps a second one, and "
            f"{'the' if labelled else 'no'} label. "
            f"Received: {' '.join(columns)}"
        )
    known = [columns] if columns else _KNOWN_COLUMNS
    if not labelled and not columns:
        known = [names[:-1] for names in known]
    header = not columns or not all(name.isdecimal() for name in columns)
    wanted = {name for names in known for name in names}
    for where, record in read_records(source, wanted, header):
        keys = next((k for k in known if all(n in record for n in k)), None)
        if keys is None:
            raise ValueError(
                f"{where}: must have the columns {' '.join(known[0])}"
                f"{'' if columns else ', or --columns'}. "
                f"Received: {' '.join(map(str, record))[:200]}"
            )
        label = _label(record[keys[-1]], where) if labelled else None
        keys = keys[:-1] if labelled else keys
        yield Row(where, [beir.text(record, key, where) for key in keys], label)


def _label(value, where):
    if type(value) in (int, str) and value != "":
        return None if str(value) in _NO_LABEL else str(value)
    raise ValueError(
        f"{where}: the label of a class must be a string that is not empty or "
        f"an integer. Received: {value!r}, {type(value).__name__}"
    )


def read_texts(
    path: str | os.PathLike,
    most: int | None = None,
    say: Callable[[str], None] | None = None,
) -> list[str]:
    """Reads at most `most` texts, and tells `say` how many more were blank.

    The file has a text a line. A `.jsonl` file, such as a BEIR corpus, or a
    named dataset has `text` and perhaps `title`.
    """
    texts: list[str] = []
    blank = 0
    for text in iterate_texts(path):
        if text:
            texts.append(text)
        else:
            blank += 1
        if len(texts) == most:
            break
    if not texts:
        raise ValueError(f"{path} has no text in it")
    if blank and say is not None:
        say(f"{path}: {blank:,} left out as blank")
    return texts


def iterate_texts(path: str | os.PathLike) -> Iterator[str]:
    """Yields the texts of a file or named dataset, see `read_texts`; or ""."""
    source = os.fspath(path)
    if is_named(source) or source.endswith(".jsonl"):
        for where, record in read_records(source, ("text", "title")):
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
