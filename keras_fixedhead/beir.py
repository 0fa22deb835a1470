"""Retrieval collections on disk: JSON lines and BEIR folders.

The format is that of Thakur et al. 2021, 'BEIR': `corpus.jsonl`,
`queries.jsonl` and `qrels/SPLIT.tsv`.
"""

import dataclasses
import functools
import json
import os
import pathlib
import typing
from collections.abc import Iterable, Iterator, Mapping


class Judgement(typing.NamedTuple):
    """The identifiers of a query and a document, relevant if `score` > 0."""

    query: str
    document: str
    score: int


class Beir(typing.NamedTuple):
    """A BEIR folder: texts by identifier, titles before texts, judgements."""

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judgements: list[Judgement]


def read_beir(folder: str | os.PathLike, split: str | None = None) -> Beir:
    """Reads a BEIR folder, with `qrels/SPLIT.tsv` or all splits."""
    folder = pathlib.Path(folder)
    queries = _read_texts(folder / "queries.jsonl")
    documents = _read_texts(folder / "corpus.jsonl")
    tables = sorted((folder / "qrels").glob("*.tsv"))
    if split is not None:
        tables = [folder / "qrels" / f"{split}.tsv"]
    if not tables:
        raise ValueError(
            f"A BEIR folder must hold qrels/*.tsv. Received: {str(folder)!r}"
        )
    judgements = []
    for path in tables:
        for number, (where, line) in enumerate(_read_lines(path)):
            if number == 0 and line.startswith(b"query-id\t"):
                continue
            try:
                query, document, score = line.decode().strip().split("\t")
                judgements.append(Judgement(query, document, int(score)))
            except ValueError as error:
                raise ValueError(
                    f"{where}: a line must be a query, a document and a whole "
                    f"number, with tabs between. Received: {line!r}"
                ) from error
            if query not in queries:
                raise ValueError(f"{where}: queries.jsonl lacks {query!r}.")
            if document not in documents:
                raise ValueError(f"{where}: corpus.jsonl lacks {document!r}.")
    return Beir(documents, queries, judgements)


@dataclasses.dataclass(frozen=True)
class Collection:
    """N documents to search, titles before texts, and Q judged queries.

    `relevant` holds for each query the scores (over 0) of its relevant
    documents by row number. Blank documents are left out: they have numbers
    from N, which no ranking finds, and count as missed.
    """

    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    relevant: list[dict[int, int]]
    blank_ids: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{len(self.queries):,} queries, {len(self.documents):,} documents"
            + (f" ({count_blank(self.blank_ids)})" if self.blank_ids else "")
        )


def read_collection(
    folder: str | os.PathLike, split: str = "test"
) -> Collection:
    """Reads the documents of a BEIR folder, and queries with relevant ones."""
    texts, queries, judgements = read_beir(folder, split)
    documents = {n: text for n, text in texts.items() if not is_blank(text)}
    blank = [name for name in texts if name not in documents]
    if not documents:
        raise ValueError(f"`collection` {folder} has no documents with text.")
    rows = {name: row for row, name in enumerate([*documents, *blank])}
    relevant: dict[str, dict[int, int]] = {}
    for query, document, score in judgements:
        if score > 0:
            relevant.setdefault(query, {})[rows[document]] = score
    for name in relevant:
        if is_blank(queries[name]):
            raise ValueError(
                f"`collection` {folder}: the query {name!r} is blank."
            )
    return Collection(
        list(documents),
        list(documents.values()),
        list(relevant),
        [queries[name] for name in relevant],
        list(relevant.values()),
        blank,
    )


def write_beir(folder: str | os.PathLike, beir: Beir, split: str) -> None:
    """Writes a BEIR folder, all titles empty."""
    folder = pathlib.Path(folder)
    (folder / "qrels").mkdir(parents=True)
    texts = beir.documents.items()
    documents = ({"_id": key, "title": "", "text": text} for key, text in texts)
    write_records(folder / "corpus.jsonl", documents)
    queries = ({"_id": key, "text": text} for key, text in beir.queries.items())
    write_records(folder / "queries.jsonl", queries)
    rows = [("query-id", "corpus-id", "score"), *beir.judgements]
    (folder / "qrels" / f"{split}.tsv").write_text(
        "".join("\t".join(map(str, row)) + "\n" for row in rows), "utf-8"
    )


def read_records(
    path: str | os.PathLike,
) -> Iterator[tuple[str, dict[str, typing.Any]]]:
    """Yields ("file:line", object) of a file with one JSON object a line."""
    for where, line in _read_lines(path):
        yield where, parse_record(line, where)


def parse_record(line: str | bytes, where: str) -> dict[str, typing.Any]:
    """The JSON object of a line; errors name it as `where`, "file:line"."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        form = "in UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise ValueError(f"{where}: a line must be {form}: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(
            f"{where}: a line must be a JSON object. Received: {record!r}"
        )
    return record


def write_records(
    path: str | os.PathLike, records: Iterable[Mapping[str, str]]
) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        for record in records:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")


def identifier(value: typing.Any, key: str, where: str) -> str:
    """Returns `value` if it can name a text, else raises `ValueError`."""
    # Tables of judgements are split at whitespace.
    if not isinstance(value, str) or value.split() != [value]:
        raise ValueError(
            f"{where}: {key!r} must be a string without whitespace. "
            f"Received: {value!r}"
        )
    return value


def text(record: Mapping[str, typing.Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(
            f"{where}: {key!r} must be a string. Received: {value!r}"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: {key!r} holds a lone surrogate, which is not UTF-8."
        ) from error
    return value


def is_blank(text: str) -> bool:
    """Whether BERT's tokenizer finds no token in a text."""
    return not any(map(str.isalnum, text)) and not _normalize()(text).strip()


def count_blank(names: list[str]) -> str:
    first = ", ".join(map(repr, names[:5]))
    rest = ", ..." if len(names) > 5 else ""
    return f"without {len(names):,} that are blank: {first}{rest}"


@functools.cache
def _normalize():
    import tokenizers

    return tokenizers.normalizers.BertNormalizer(
        handle_chinese_chars=False, strip_accents=True, lowercase=False
    ).normalize_str


def document(record: Mapping[str, typing.Any], where: str) -> str:
    title = text({"title": "", **record}, "title", where)
    return f"{title}\n\n{text(record, 'text', where)}".strip()


def _read_lines(path):
    """Yields ("file:line", line), in bytes, of the lines that are not blank."""
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.isspace():
                yield f"{os.fspath(path)}:{number}", line


def _read_texts(path):
    texts = {}
    for where, record in read_records(path):
        key = identifier(record.get("_id"), "_id", where)
        if key in texts:
            raise ValueError(f"{where}: _id {key!r} was on an earlier line.")
        texts[key] = document(record, where)
    return texts
