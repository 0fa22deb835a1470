"""Where documents come from, and which of them are held out or drawn.

The hash of a document decides, so other documents can come and go, and equal
documents stay together.
"""

import codecs
import dataclasses
import glob
import gzip
import hashlib
import heapq
import json
import os
import pathlib
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Sequence

from training.corpus.datasets import TfdsSplit, is_named, open_dataset
from training.prepare.documents import (
    BYTES,
    LONG_JSON,
    Counts,
    read_one,
    read_text,
)

_SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
# A longer line of JSON cannot be cut; it is left out.
MAX_JSON_BYTES = 2**26


@dataclasses.dataclass(frozen=True)
class File:
    """A file of text or JSON lines."""

    path: pathlib.Path
    num_bytes: int
    lines_are_documents: bool = False

    def __str__(self) -> str:
        return str(self.path)

    def documents(self, counts: Counts) -> Iterator[bytes]:
        """Yields the documents, and counts what it meets."""
        before = counts[BYTES]
        with open(self.path, "rb") as file:
            packed = self.path.suffix == ".gz"
            stream = gzip.GzipFile(fileobj=file) if packed else file
            try:
                for document in self._read(stream, counts):
                    counts[BYTES] = before + file.tell()
                    yield document
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{self.path}: damaged or cut off: {error}"
                ) from error
            counts[BYTES] = before + file.tell()

    def _read(self, stream, counts):
        if stream.peek(3).startswith(codecs.BOM_UTF8):
            stream.read(3)
        if self.path.name.removesuffix(".gz").endswith(".jsonl"):
            return _read_jsonl(self.path, stream, counts)
        return read_text(stream, counts, self.lines_are_documents)

    def parts(self) -> list["Source"]:
        return [self]

    def identity(self) -> object:
        return os.path.realpath(self.path)


def _read_jsonl(path, stream, counts):
    lines = iter(lambda: stream.readline(MAX_JSON_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_JSON_BYTES:
            counts[LONG_JSON] += 1
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_JSON_BYTES)
            continue
        if not line.strip():
            continue
        try:
            # Bytes that are not UTF-8, and surrogates that JSON escapes, end
            # up as bytes that are not UTF-8, which `read_one` drops.
            record = json.loads(line.decode(errors="surrogateescape"))
            text = record["text"].encode(errors="surrogatepass")
        except (
            ValueError, KeyError, TypeError, AttributeError, RecursionError
        ):  # fmt: skip
            raise ValueError(
                f"{path}:{number}: a line must be a JSON object whose `text` "
                f"is a string. Received: {reprlib.repr(line)}"
            ) from None
        yield from read_one(text, counts)


@dataclasses.dataclass(frozen=True)
class DatasetTexts(TfdsSplit):
    """The texts of a named dataset, in its column `feature`."""

    feature: str

    def documents(self, counts: Counts) -> Iterator[bytes]:
        """Yields the documents, one per example."""
        before = counts[BYTES]
        for number, example in enumerate(self.examples([self.feature]), 1):
            counts[BYTES] = before + (
                self.num_bytes * number // self.num_examples
            )
            yield from read_one(example[self.feature], counts)

    def identity(self) -> object:
        return self


# `identity` is the same under each name of a source; `parts` divides it into
# sources that workers can read.
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
        return sum(s.num_bytes for s in self.train + self.heldout)

    def documents(self, counts: Counts) -> Iterator[tuple[str, bytes]]:
        """Yields the split of each document, and the document."""
        for source in self.train:
            for document in source.documents(counts):
                yield self.split(document), document
        for source in self.heldout:
            for document in source.documents(counts):
                yield "heldout", document

    def split(self, document: bytes) -> str:
        """Returns the split, `train` or `heldout`, of a document in `train`."""
        number = document_hash(document, b"heldout", self.seed)
        return "heldout" if number < self.heldout_part * 2**64 else "train"


def sample(
    documents: Iterable[bytes], max_bytes: int, seed: int
) -> list[bytes]:
    """Draws documents of at most `max_bytes`, those of the smallest hashes."""
    drawn: list[tuple[int, bytes]] = []  # the largest hash first
    size = 0
    for document in documents:
        entry = -document_hash(document, b"sample", seed), document
        heapq.heappush(drawn, entry)
        size += len(document)
        # One is always drawn, even if it is longer.
        while size > max_bytes and len(drawn) > 1:
            size -= len(heapq.heappop(drawn)[1])
    return [document for _, document in sorted(drawn, reverse=True)]


def document_hash(document: bytes, purpose: bytes, seed: int) -> int:
    """Returns a number below 2**64, independent for each purpose and seed."""
    salt = seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little", signed=True)
    digest = hashlib.blake2b(document, digest_size=8, person=purpose, salt=salt)
    return int.from_bytes(digest.digest(), "little")


def find_sources(
    names: Sequence[str],
    tfds_data_dir: pathlib.Path | None,
    lines_are_documents: bool = False,
) -> list[Source]:
    """Finds sources by name (see `TextConfig.source`), each once, in order."""
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
    held_out = {source.identity() for source in heldout}
    left = [source for source in sources if source.identity() not in held_out]
    datasets = [s for s in heldout if isinstance(s, DatasetTexts)]
    for source in left:
        if isinstance(source, DatasetTexts) and any(
            map(source.overlaps, datasets)
        ):
            raise ValueError(
                "`heldout_source` must be one whole `source`, or must not "
                f"overlap any. Received: {', '.join(map(str, datasets))} and "
                f"the source {source}"
            )
    return left


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
    """Returns path, size and time of files, or `None` if one is gone."""
    try:
        return [
            [str(file), file.num_bytes, file.path.stat().st_mtime_ns]
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
            inside = sorted(path.rglob("*"))
            files += [file for file in inside if file.name.endswith(_SUFFIXES)]
        else:
            files.append(path)
    # A pipe could be read only once.
    files = [file for file in files if file.is_file()]
    if not files:
        raise ValueError(
            f"`source` must be text ({', '.join(_SUFFIXES)} in a folder). "
            f"Received: {name!r}"
        )
    return [
        File(file, file.stat().st_size, lines_are_documents) for file in files
    ]


def _find_dataset(name: str, data_dir: pathlib.Path | None) -> DatasetTexts:
    dataset = open_dataset(name, data_dir)
    strings = dataset.strings()
    if "text" not in strings and len(strings) != 1:
        raise ValueError(
            f"`source` {name!r} must have the feature `text`, or one string. "
            f"Its strings: {sorted(strings)}"
        )
    feature = "text" if "text" in strings else strings[0]
    return DatasetTexts(**vars(dataset), feature=feature)
