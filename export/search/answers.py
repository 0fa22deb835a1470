"""Answers queries from an index: for a program, in a terminal, for a file."""

import contextlib
import itertools
import json
import pathlib
import sys
import typing
from collections.abc import Callable

import rich.console
import rich.markup
import rich.table

from export.batches import OnBatch
from export.encoder import Encoder
from export.index.faiss_index import VectorIndex
from export.index.index_folder import Index
from keras_fixedhead import beir, retrieval
from keras_fixedhead.bm25 import BM25
from keras_fixedhead.files import replaced
from keras_fixedhead.ranking import Ranking

RANKERS = ("encoder", "bm25", "fusion")
# Fused lists are deeper than the result, see `reciprocal_rank_fusion`.
_DEPTH = 100
_STANDARD = "-"
_CHUNK = 1024  # lines in memory
_ESCAPED = range(0xDC80, 0xDD00)  # bytes that are not UTF-8 (PEP 383)


class Hit(typing.NamedTuple):
    """A document that answers a query; ranks count from 1."""

    rank: int
    id: str
    text: str
    score: float


def problem_with(query: str) -> str | None:
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


def rank(
    opened: Encoder | None,
    vectors: VectorIndex | None,
    bm25: BM25 | None,
    queries: list[str],
    rankers: typing.Sequence[str],
    k: int = _DEPTH,
    on_batch: OnBatch = None,
) -> dict[str, Ranking]:
    """Returns the ranking of each ranker, of at most `k` documents a query.

    No query has a `problem_with` it. BM25 alone needs no `opened` and no
    `vectors`, the encoder alone no `bm25`. `on_batch` is called with the
    number of queries of each embedded batch.
    """
    found, depth = {}, max(k, _DEPTH) if "fusion" in rankers else k
    if rankers != ("bm25",):
        embeddings = opened.embed(queries, "query", on_batch)
        found["encoder"] = vectors.search(embeddings, depth)
    if rankers != ("encoder",):
        found["bm25"] = bm25.search(queries, depth)
    if "fusion" in rankers:
        found["fusion"] = retrieval.reciprocal_rank_fusion(
            list(found.values()), k
        )
    return {ranker: found[ranker] for ranker in rankers}


def answer(
    opened: Encoder | None,
    searched: Index,
    queries: list[str],
    k: int,
    ranker: str,
) -> list[list[Hit]]:
    """Returns at most `k` hits of each query, best first; see `rank`."""
    bm25 = None if ranker == "encoder" else searched.bm25
    rankings = rank(opened, searched.vectors, bm25, queries, (ranker,), k)
    return [
        [
            Hit(number, *searched.documents[row], float(score))
            for number, (row, score) in enumerate(zip(rows, scores), 1)
            if row >= 0
        ]
        for rows, scores in zip(*rankings[ranker])
    ]


def print_hits(
    query: str, hits: list[Hit], console: rich.console.Console
) -> None:
    """Prints the hits of one query."""
    title = rich.markup.escape(tidy(query))
    if not hits:
        console.print(f"{title}: no document found")
        return
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("document", overflow="fold")
    table.add_column("text")
    for hit in hits:
        table.add_row(
            str(hit.rank),
            f"{hit.score:.4f}",
            rich.markup.escape(tidy(hit.id)),
            rich.markup.escape(tidy(hit.text)),
        )
    console.print(table)


def tidy(text, width=72):
    # A terminal would obey control characters.
    line = "".join(c if c.isprintable() else " " for c in text[: 8 * width])
    line = " ".join(line.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def converse(
    ask: Callable[[list[str]], list[list[Hit]]], console: rich.console.Console
) -> None:
    """Answers queries that are typed in a terminal, until `:q` or Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  the arrow keys and a history
    console.print("Ctrl-D or :q ends", style="dim")
    while True:
        try:
            query = input("query> ")
            if query.strip() == ":q":
                return
            if not query.strip():
                continue
            problem = problem_with(query)
            if problem:
                raise ValueError(f"the query {problem}")
            print_hits(query, ask([query])[0], console)
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print()
        # A server that is away now may be back at the next query.
        except (ValueError, OSError) as error:
            message = rich.markup.escape(str(error))
            console.print(f"[red]error:[/] {message}")


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
        if isinstance(found["query"], str) and problem_with(found["query"]):
            raise ValueError(
                f"{where}: {key!r} {problem_with(found['query'])}."
            )
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
