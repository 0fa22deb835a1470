"""A file of documents, one JSON object a line, in shards of whole lines.

The file may be larger than memory: it is read line by line, and a shard by its
range of bytes.
"""

import array
import hashlib
import json
import pathlib
import typing

import numpy as np

from keras_fixedhead import beir

_BYTES = 2**26  # of a shard, more or less a line


class Shard(typing.NamedTuple):
    """Documents that are embedded together.

    Attributes:
        start: int, where its first line starts in the file.
        end: int, where its last line ends.
        line: int, the number of its first line, from 1.
        documents: int, how many there are.
        sha256: str, of their identifiers and texts.
    """

    start: int
    end: int
    line: int
    documents: int
    sha256: str


class Plan(typing.NamedTuple):
    """How a corpus is divided.

    Attributes:
        shards: list of its `Shard`s.
        blank: list of the identifiers of blank documents, which no shard
            holds; see `beir.is_blank`.
    """

    shards: list
    blank: list


def find(corpus):
    """Returns the file of a corpus: itself, or a BEIR folder's.

    Raises:
        ValueError: if there is none.
    """
    path = pathlib.Path(corpus)
    if path.is_dir():
        path = path / "corpus.jsonl"
    if not path.is_file():
        raise ValueError(
            f"`corpus` must be a .jsonl file or a BEIR folder, received "
            f"{corpus}: {path} is no file."
        )
    return path


def plan(path, most):
    """Reads a file once and divides it into shards.

    What a shard holds depends on its documents alone, so that after a change
    the shards of the others are what they were.

    Args:
        path: path of the file.
        most: int, the most documents of a shard.

    Returns:
        A `Plan`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: names the line that is no document, or whose identifier
            is that of another; or if no document has a text, or `most` is
            not positive.
    """
    if most < 1:
        raise ValueError(f"`shard_documents` must be positive, not {most}.")
    shards, blank, hashes = [], [], array.array("Q")
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
        hashes.append(_hash(name))
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
    _refuse_duplicates(path, hashes)
    return Plan(shards, blank)


def read(path, shard):
    """Reads the documents of a shard, without blank ones.

    Returns:
        Their identifiers and their texts, two lists of `str`.

    Raises:
        ValueError: if the file was changed since `plan` read it.
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
            name = _identifier(record, number, where)
            yield number, start, name, beir.document(record, where)


def _identifier(record, number, where):
    key = "id" if "id" in record and "_id" not in record else "_id"
    value = record.get(key, number)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value == "":
        raise ValueError(f"{where}: {key!r} must not be empty.")
    return beir.text(record, key, where)


def _entry(name, text):
    return json.dumps([name, text]).encode()


def _hash(name):
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest)


def _refuse_duplicates(path, hashes):
    """Raises a `ValueError` if an identifier is there twice.

    All hashes together are 8 bytes a document; only where two are equal are
    the identifiers themselves compared.
    """
    ordered = np.sort(np.frombuffer(hashes, np.uint64))
    twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not twice:
        return
    lines = {}
    for line, _, name, _ in _documents(path):
        if _hash(name) not in twice:
            continue
        if name in lines:
            raise ValueError(
                f"{path}:{line}: the identifier {name!r} is that of line "
                f"{lines[name]}, too. Give each document its own."
            )
        lines[name] = line
