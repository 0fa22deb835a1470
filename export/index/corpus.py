"""A file of documents, one JSON object a line, in shards of whole lines.

The file may be larger than memory: it is read line by line, and a shard by its
range of bytes.
"""

import hashlib
import json
import os
import pathlib
import typing

from keras_fixedhead import beir

_BYTES = 2**26  # of a shard, more or less a line


class Shard(typing.NamedTuple):
    """Documents that are embedded together: bytes `start` to `end` of a file.

    `line` is the number of the first line, from 1; `sha256` digests the
    identifiers and texts.
    """

    start: int
    end: int
    line: int
    documents: int
    sha256: str


def find(corpus: str | os.PathLike) -> pathlib.Path:
    """Returns the file of a corpus: itself, or that of a BEIR folder."""
    path = pathlib.Path(corpus)
    if path.is_dir():
        path = path / "corpus.jsonl"
    if not path.is_file():
        raise ValueError(
            f"`corpus` must be a .jsonl file or a BEIR folder: {path} is none."
        )
    return path


def plan(path: pathlib.Path, most: int) -> tuple[list[Shard], list[str]]:
    """Reads a file once and divides it into shards of at most `most` documents;
    also returns the identifiers of blank documents, which no shard holds.

    A shard depends on its documents alone, so that a change leaves the other
    shards as they were. A `ValueError` names the line that is not a document,
    or whose identifier another line has.
    """
    if most < 1:
        raise ValueError(f"`shard_documents` must be positive, not {most}.")
    shards, blank = [], []
    lines: dict[str, int] = {}  # where each identifier is
    digest, count, start, first_line, end = hashlib.sha256(), 0, 0, 1, 0

    def close(next_line):
        nonlocal digest, count, start, first_line
        if count:
            shards.append(
                Shard(start, end, first_line, count, digest.hexdigest())
            )
        digest, count = hashlib.sha256(), 0
        start, first_line = end, next_line

    line = 0
    for line, end, name, text in _documents(path):
        if name in lines:
            raise ValueError(
                f"{path}:{line}: line {lines[name]} has the identifier "
                f"{name!r}, too. Identifiers must be unique."
            )
        lines[name] = line
        if beir.is_blank(text):
            blank.append(name)
            continue
        digest.update(_entry(name, text))
        count += 1
        if count == most or end - start >= _BYTES:
            close(line + 1)
    close(line + 1)
    if not shards:
        blanks = f": all {len(blank):,} are blank" if blank else ""
        raise ValueError(f"`corpus` {path} has no document{blanks}.")
    return shards, blank


def read(path: pathlib.Path, shard: Shard) -> tuple[list[str], list[str]]:
    """Returns the identifiers and texts of a shard, without blank documents.

    Raises a `ValueError` if the file has changed since `plan` read it.
    """
    names, texts, digest = [], [], hashlib.sha256()
    for _, _, name, text in _documents(
        path, shard.start, shard.end, shard.line
    ):
        if not beir.is_blank(text):
            names.append(name)
            texts.append(text)
            digest.update(_entry(name, text))
    if digest.hexdigest() != shard.sha256:
        raise ValueError(
            f"`corpus` {path} was changed while it was read. Start again when "
            "it is complete."
        )
    return names, texts


def _documents(path, start=0, end=None, line=1):
    """Yields (line number, where the line ends, identifier, text)."""
    with open(path, "rb") as stream:
        stream.seek(start)
        for number, content in enumerate(stream, start=line):
            start += len(content)
            if end is not None and start > end:
                return
            if content.isspace():
                continue
            where = f"{path}:{number}"
            record = beir.parse_record(content, where)
            key = "id" if "id" in record and "_id" not in record else "_id"
            name = record.get(key, number)
            if name == "":
                raise ValueError(f"{where}: {key!r} must not be empty.")
            if isinstance(name, bool) or not isinstance(name, int):
                name = beir.text(record, key, where)
            yield number, start, str(name), beir.document(record, where)


def _entry(name, text):
    return json.dumps([name, text]).encode()
