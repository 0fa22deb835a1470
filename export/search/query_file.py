"""Answers the queries in a file, or in standard input, line by line."""

import contextlib
import itertools
import json
import pathlib
import sys
from collections.abc import Callable

from export.search.report import Hit
from keras_fixedhead import beir
from keras_fixedhead.files import replaced

_STANDARD = "-"
_CHUNK = 1024  # lines in memory
_ESCAPED = range(0xDC80, 0xDD00)  # bytes that are not UTF-8 (PEP 383)


def problem(query: str) -> str | None:
    """Says what is wrong with a query, as the end of a sentence."""
    try:
        query.encode()
    except UnicodeEncodeError as error:
        code, place = ord(query[error.start]), error.start + 1
        if code in _ESCAPED:
            return (
                f"must be in UTF-8, but has the byte 0x{code - 0xDC00:x} as "
                f"character {place}"
            )
        return f"has the lone surrogate U+{code:X} as character {place}"
    return "is blank" if beir.is_blank(query) else None


def answer_file(
    queries: str,
    output: pathlib.Path,
    ask: Callable[[list[str]], list[list[Hit]]],
    with_texts: bool,
) -> int:
    """Answers a file of queries with a file, both one JSON object a line.

    A line that is not a query has `error` for an answer; returns how many
    there are. "-" is standard input or output. `with_texts` writes the texts
    of hits, too.
    """
    failed = 0
    name = "standard input" if queries == _STANDARD else queries
    with _reading(queries) as lines, _writing(output) as stream:
        numbered = (
            (f"{name}:{number}", line)
            for number, line in enumerate(lines, 1)
            if not line.isspace()
        )
        while chunk := list(itertools.islice(numbered, _CHUNK)):
            answers = [_read(line, where) for where, line in chunk]
            good = [a for a in answers if "error" not in a]
            found = ask([a["query"] for a in good]) if good else []
            for answered, hits in zip(good, found, strict=True):
                answered["hits"] = [hit._asdict() for hit in hits]
                if not with_texts:
                    for hit in answered["hits"]:
                        del hit["text"]
            failed += len(answers) - len(good)
            stream.writelines(map(_to_line, answers))
            stream.flush()
    return failed


def _read(line, where):
    """Returns the query and the identifier of a line, or also an error."""
    found = {"query": None, "id": None}
    try:
        record = beir.parse_record(line, where)
        for name in ("_id", "id"):
            found["id"] = record.get(name, found["id"])
        key = "query" if "query" in record else "text"
        found["query"] = record.get(key)
        if isinstance(found["query"], str) and problem(found["query"]):
            raise ValueError(f"{where}: {key!r} {problem(found['query'])}.")
        beir.text(record, key, where)
    except ValueError as error:
        found["error"] = str(error)
    return found


def _to_line(answered):
    line = json.dumps(answered, ensure_ascii=False)
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:  # a query with a lone surrogate
        return json.dumps(answered).encode() + b"\n"


def _reading(path):
    if path == _STANDARD:
        return contextlib.nullcontext(sys.stdin.buffer)
    return open(path, "rb")


@contextlib.contextmanager
def _writing(path):
    if str(path) == _STANDARD:
        yield sys.stdout.buffer
        return
    with replaced(pathlib.Path(path)) as partial, open(partial, "wb") as stream:
        yield stream
