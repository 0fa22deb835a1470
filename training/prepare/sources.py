"""Where documents come from, and which of them are held out or drawn.

The hash of a document decides whether it is held out and whether it is in a
sample, so other documents can come and go, in any order, and equal documents
stay together.
"""

import dataclasses
import glob
import hashlib
import heapq
import io
import os
import pathlib
from collections.abc import Iterator, Sequence

from training.corpus.datasets import Dataset, is_named, open_dataset
from training.prepare.documents import Tally, read_file, read_text

_SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")


@dataclasses.dataclass(frozen=True)
class File:
    """A file of text or JSON lines; `modified` is in nanoseconds."""

    path: pathlib.Path
    num_bytes: int
    modified: int
    lines_are_documents: bool = False

    def documents(self, tally: Tally) -> Iterator[bytes]:
        """Yields the documents, as `read_file` does."""
        return read_file(
            self.path, tally, lines_are_documents=self.lines_are_documents
        )

    def parts(self) -> list["Source"]:
        """Divides the source into sources that workers can read."""
        return [self]

    def identity(self) -> object:
        """A key that is the same under each name of the source."""
        return os.path.realpath(self.path)


@dataclasses.dataclass(frozen=True)
class DatasetTexts:
    """The texts of a named dataset, in its column `feature`."""

    dataset: Dataset
    feature: str

    @property
    def num_bytes(self) -> int:
        return self.dataset.num_bytes

    def documents(self, tally: Tally) -> Iterator[bytes]:
        """Yields the documents, one per example."""
        before = tally.bytes_read
        texts = self.dataset.texts(self.feature)
        for number, text in enumerate(texts, start=1):
            tally.bytes_read = before + (
                self.num_bytes * number // self.dataset.num_examples
            )
            yield from read_text(io.BytesIO(text), tally.counts, divide=None)

    def parts(self) -> list["Source"]:
        """Divides the source into sources that workers can read."""
        parts = self.dataset.parts()
        return [dataclasses.replace(self, dataset=part) for part in parts]

    def identity(self) -> object:
        return self

    def __str__(self) -> str:
        return str(self.dataset)

    def overlaps(self, other: "Source") -> bool:
        """Whether another source has examples in common with this one."""
        return isinstance(other, DatasetTexts) and self.dataset.overlaps(
            other.dataset
        )


Source = File | DatasetTexts


@dataclasses.dataclass(frozen=True)
class Sources:
    """Sources of `train` and of held-out documents.

    The fraction `heldout_part` of the documents in `train` is held out; `seed`
    decides which.
    """

    train: list[Source]
    heldout: list[Source]
    heldout_part: float
    seed: int

    @property
    def num_bytes(self) -> int:
        """Size of all sources."""
        return sum(s.num_bytes for s in self.train + self.heldout)

    def plan(self) -> dict:
        """Returns what decides the documents, for a record of it."""
        plan = dataclasses.asdict(self)
        for source in plan["train"] + plan["heldout"]:
            source.update(source.pop("dataset", {}))  # flat, as in old records
        return plan

    def documents(self, tally: Tally) -> Iterator[tuple[str, bytes]]:
        """Yields the split of each document, and the document."""
        for source in self.train:
            for document in source.documents(tally):
                yield self.split(document), document
        for source in self.heldout:
            for document in source.documents(tally):
                yield "heldout", document

    def split(self, document: bytes) -> str:
        """Returns the split, `train` or `heldout`, of a document in `train`."""
        number = _hash(document, b"heldout", self.seed)
        return "heldout" if number < self.heldout_part * 2**64 else "train"


class Sample:
    """Draws documents of at most `max_bytes`, those with the smallest hashes.

    The order of documents makes no difference. One document is always drawn,
    even if it is longer.
    """

    def __init__(self, max_bytes: int, seed: int):
        self._max_bytes = max_bytes
        self._seed = seed
        self._size = 0
        self._drawn: list[tuple[int, bytes]] = []  # the largest hash first

    def add(self, document: bytes) -> None:
        """Draws the document if its hash is small, and drops larger ones."""
        drawn = -_hash(document, b"sample", self._seed), document
        heapq.heappush(self._drawn, drawn)
        self._size += len(document)
        while self._size > self._max_bytes and len(self._drawn) > 1:
            self._size -= len(heapq.heappop(self._drawn)[1])

    def documents(self) -> list[bytes]:
        """Returns the drawn documents, by hash."""
        return [document for _, document in sorted(self._drawn, reverse=True)]


def shard_number(document: bytes, num_shards: int) -> int:
    """Returns the shard of a document when documents have no order."""
    return _hash(document, b"shard", 0) % num_shards


def _hash(document: bytes, purpose: bytes, seed: int) -> int:
    """Returns a number below 2**64, independent for each purpose and seed."""
    salt = seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little", signed=True)
    digest = hashlib.blake2b(document, digest_size=8, person=purpose, salt=salt)
    return int.from_bytes(digest.digest(), "little")


def find_sources(
    names: Sequence[str],
    tfds_data_dir: pathlib.Path | None,
    lines_are_documents: bool = False,
) -> list[Source]:
    """Finds sources by name, each once, in the order of the names.

    A name is a file, a glob, a folder (its .txt and .jsonl files, also with
    .gz), or a dataset `tfds:...`, which is prepared if needed.
    """
    first: dict[object, Source] = {}
    for name in names:
        found: Sequence[Source]
        if is_named(name):
            found = [_find_dataset(name, tfds_data_dir)]
        else:
            found = _find_files(name, lines_are_documents)
        for source in found:
            first.setdefault(source.identity(), source)
    return list(first.values())


def without(
    sources: Sequence[Source], heldout: Sequence[Source]
) -> list[Source]:
    """Returns the sources that are not held out."""
    for source in sources:
        if not isinstance(source, DatasetTexts):
            continue
        for other in heldout:
            if source != other and source.overlaps(other):
                raise ValueError(
                    "`heldout_source` must be one whole `source`, or must not "
                    f"overlap any. Received: {other} and the source {source}"
                )
    held_out = {source.identity() for source in heldout}
    return [source for source in sources if source.identity() not in held_out]


def check_outside(output: pathlib.Path, names: Sequence[str]) -> None:
    """Refuses an `output` in a folder of sources: it would become a source."""
    for name in names:
        for folder in map(pathlib.Path, [name, *glob.glob(name)]):
            if folder.is_dir() and output.resolve().is_relative_to(
                folder.resolve()
            ):
                raise ValueError(
                    "`output` must lie outside the folders of `source`. "
                    f"Received: {str(output)!r} in {str(folder)!r}"
                )


def stamps(names: Sequence[str]) -> list | None:
    """Returns path, size and time of the files of sources, as JSON values.

    Datasets have versions instead. Returns `None` if a file is gone.
    """
    try:
        return [
            [os.fspath(file.path), file.num_bytes, file.modified]
            for name in names
            if not is_named(name)
            for file in _find_files(name)
        ]
    except (OSError, ValueError):
        return None


def _find_files(name: str, lines_are_documents: bool = False) -> list[File]:
    paths = [name] if os.path.exists(name) else glob.glob(name, recursive=True)
    if not paths:
        raise FileNotFoundError(f"`source` {name!r}: there is no such file")
    files: list[pathlib.Path] = []
    for path in map(pathlib.Path, sorted(paths)):
        if path.is_dir():
            files += sorted(
                file
                for file in path.rglob("*")
                if file.name.endswith(_SUFFIXES) and file.is_file()
            )
        # A pipe could be read only once.
        elif path.is_file():
            files.append(path)
    if not files:
        raise ValueError(
            f"`source` must be text ({', '.join(_SUFFIXES)} in a folder). "
            f"Received: {name!r}"
        )
    return [
        File(file, stat.st_size, stat.st_mtime_ns, lines_are_documents)
        for file, stat in ((file, file.stat()) for file in files)
    ]


def _find_dataset(name: str, data_dir: pathlib.Path | None) -> DatasetTexts:
    dataset = open_dataset(name, "source", data_dir)
    strings = dataset.strings()
    if "text" in strings:
        return DatasetTexts(dataset, "text")
    if len(strings) != 1:
        raise ValueError(
            f"`source` {name!r} must have the feature `text`, or one string. "
            f"Its strings: {sorted(strings)}"
        )
    return DatasetTexts(dataset, *strings)
