"""Query-document pairs: the sources they are read from and a BEIR folder."""

import collections
import itertools
import json
import os
import pathlib
import typing
from collections.abc import Iterable, Iterator


class Pair(typing.NamedTuple):
    """One query and the one document that answers it."""

    id: str
    query: str
    document: str


def is_unicode(text: str) -> bool:
    """Whether the text can be written; escapes make lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_jsonl(path: str | os.PathLike) -> list[Pair]:
    """Reads pairs from a file of one JSON object a line.

    Args:
        path: File whose lines are objects with the strings `query` and
            `document`, and optionally an `id` without whitespace. A line
            without an `id` takes its line number.

    Returns:
        The pairs, in the order of the file.

    Raises:
        ValueError: Names the file and the line that is malformed, or whose
            `id` was there before.
    """
    pairs: dict[str, Pair] = {}
    for number, where, record in _read_records(path):
        pair = Pair(
            _identifier(record.get("id", str(number)), "id", where),
            _text(record, "query", where),
            _text(record, "document", where),
        )
        if not pair.query.strip() or not pair.document.strip():
            raise ValueError(
                f"{where}: the query and the document must not be blank. "
                f"Received: {record}"
            )
        if pair.id in pairs:
            raise ValueError(
                f"{where}: the id {pair.id!r} was on an earlier line; ids "
                "must be unique."
            )
        pairs[pair.id] = pair
    return list(pairs.values())


def read_beir(folder: str | os.PathLike) -> tuple[list[Pair], dict[str, int]]:
    """Reads the positive judgements of a BEIR folder as pairs.

    Source: the format of Thakur et al. 2021, 'BEIR: A Heterogeneous
    Benchmark for Zero-shot Evaluation of Information Retrieval Models'.

    Args:
        folder: Folder with `corpus.jsonl`, `queries.jsonl` and one or more
            `qrels/*.tsv`; all of these are read.

    Returns:
        One pair for each query and document that are judged above 0, in the
        order of the judgements, the document with its title before its text;
        and how many judgements were left out for which reason.

    Raises:
        ValueError: Names the file and the line that is malformed, or that
            judges a query or a document that the folder does not hold.
    """
    folder = pathlib.Path(folder)
    tables = sorted((folder / "qrels").glob("*.tsv"))
    if not tables:
        raise ValueError(
            f"A BEIR folder must hold qrels/*.tsv. Received: {str(folder)!r}"
        )
    queries = _read_texts(folder / "queries.jsonl")
    documents = _read_texts(folder / "corpus.jsonl")
    pairs: dict[str, Pair] = {}
    left_out: collections.Counter[str] = collections.Counter()
    for where, query, document, score in itertools.chain.from_iterable(
        map(_read_qrels, tables)
    ):
        if query not in queries:
            raise ValueError(f"{where}: queries.jsonl lacks {query!r}.")
        if document not in documents:
            raise ValueError(f"{where}: corpus.jsonl lacks {document!r}.")
        if score <= 0:
            left_out["judged irrelevant"] += 1
        elif not queries[query] or not documents[document]:
            left_out["judgements of blank texts"] += 1
        else:
            key = f"{query}/{document}"
            pairs[key] = Pair(key, queries[query], documents[document])
    return list(pairs.values()), dict(left_out)


def write_jsonl(path: str | os.PathLike, pairs: Iterable[Pair]) -> None:
    """Writes pairs as one JSON object a line, as `read_jsonl` reads them."""
    _write_records(path, (pair._asdict() for pair in pairs))


def write_beir(folder: str | os.PathLike, pairs: Iterable[Pair]) -> None:
    """Writes pairs as a BEIR folder whose one split is `test`.

    Each pair becomes a query and a document of the same identifier, which
    judge each other 1. The titles are empty.
    """
    folder = pathlib.Path(folder)
    (folder / "qrels").mkdir(parents=True)
    pairs = list(pairs)
    documents = [{"_id": p.id, "title": "", "text": p.document} for p in pairs]
    queries = [{"_id": p.id, "text": p.query} for p in pairs]
    _write_records(folder / "corpus.jsonl", documents)
    _write_records(folder / "queries.jsonl", queries)
    with open(folder / "qrels" / "test.tsv", "w", encoding="utf-8") as stream:
        stream.write("query-id\tcorpus-id\tscore\n")
        stream.writelines(f"{pair.id}\t{pair.id}\t1\n" for pair in pairs)


def _write_records(
    path: str | os.PathLike, records: Iterable[dict[str, str]]
) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        for record in records:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def _read_lines(path: str | os.PathLike) -> Iterator[tuple[int, str, str]]:
    """Yields (line number, "file:line", line) of the lines with text."""
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{os.fspath(path)}:{number}"
            try:
                text = line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{where}: a line must be in UTF-8: {error}"
                ) from error
            if text:
                yield number, where, text


def _read_records(
    path: str | os.PathLike,
) -> Iterator[tuple[int, str, dict[str, typing.Any]]]:
    """Yields (line number, "file:line", object) of a file of JSON lines."""
    for number, where, line in _read_lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{where}: a line must be JSON: {error}"
            ) from error
        if not isinstance(record, dict):
            raise ValueError(
                f"{where}: a line must be a JSON object. Received: {record!r}"
            )
        yield number, where, record


def _read_texts(path: pathlib.Path) -> dict[str, str]:
    """Reads the queries or the documents of a BEIR folder by identifier."""
    texts = {}
    for _, where, record in _read_records(path):
        key = _identifier(record.get("_id"), "_id", where)
        title = _text({"title": ""} | record, "title", where)
        text = _text(record, "text", where)
        texts[key] = f"{title}\n\n{text}".strip()
    return texts


def _read_qrels(path: pathlib.Path) -> Iterator[tuple[str, str, str, int]]:
    """Yields ("file:line", query, document, score) of judgements."""
    for number, where, line in _read_lines(path):
        if number == 1 and line.startswith("query-id\t"):
            continue
        try:
            query, document, score = line.split("\t")
            judgement = where, query, document, int(score)
        except ValueError as error:
            raise ValueError(
                f"{where}: a line must be a query, a document and a whole "
                f"number, with tabs between. Received: {line!r}"
            ) from error
        yield judgement


def _identifier(value: typing.Any, key: str, where: str) -> str:
    # Tables of judgements are split at whitespace.
    if not isinstance(value, str) or value.split() != [value]:
        raise ValueError(
            f"{where}: {key!r} must be a string without whitespace. "
            f"Received: {value!r}"
        )
    return value


def _text(record: dict[str, typing.Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(
            f"{where}: {key!r} must be a string. Received: {value!r}"
        )
    if not is_unicode(value):
        raise ValueError(f"{where}: {key!r} holds a lone surrogate.")
    return value
