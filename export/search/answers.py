"""Answers queries from an index: for a program, in a terminal, for a file."""

import contextlib
import itertools
import json
import pathlib
import sys
import typing
from collections.abc import Callable, Sequence

import rich.console
import rich.markup
import rich.table

from export.batches import OnBatch
from export.index.index_folder import Index
from export.model_source import Encoder
from keras_fixedhead import beir, retrieval
from keras_fixedhead.files import replaced
from keras_fixedhead.retrieval import Ranking

RANKERS = ("encoder", "bm25", "fusion")
# Fused lists are deeper than the result, see `reciprocal_rank_fusion`.
DEPTH = 100
_STANDARD = "-"
_CHUNK = 1024  # lines in memory
_WIDTH = 72  # characters of a text in a table


class Hit(typing.NamedTuple):
    """A document that answers a query."""

    rank: int  # from 1
    id: str
    text: str
    score: float


def check(query: str) -> None:
    """Raises a `ValueError` if a query is not UTF-8 or is blank."""
    beir.text({"query": query}, "query", "input")
    if beir.is_blank(query):
        raise ValueError(f"The query {query!r} is blank.")


def rank(
    index: Index,
    opened: Encoder | None,
    queries: list[str],
    rankers: Sequence[str],
    k: int = DEPTH,
    on_batch: OnBatch = None,
) -> dict[str, Ranking]:
    """Returns each ranker's ranking of at most `k` documents a query.

    `opened` is None for BM25 alone. `on_batch` is called with the number of
    queries of each embedded batch.
    """
    depth = max(k, DEPTH) if "fusion" in rankers else k
    found: dict[str, Ranking] = {}
    if opened is not None:
        embeddings = opened.embed(queries, "query", on_batch)
        found["encoder"] = index.vectors.search(embeddings, depth)
    if tuple(rankers) != ("encoder",):
        found["bm25"] = index.bm25.search(queries, depth)
    if "fusion" in rankers:
        lists = list(found.values())
        found["fusion"] = retrieval.reciprocal_rank_fusion(lists, k)
    return {ranker: found[ranker] for ranker in rankers}


def answer(
    index: Index,
    opened: Encoder | None,
    queries: list[str],
    k: int,
    ranker: str,
) -> list[list[Hit]]:
    """Returns at most `k` hits of each query, best first; see `rank`."""
    ranking = rank(index, opened, queries, (ranker,), k)[ranker]
    return [
        [
            Hit(number, *index.documents[row], float(score))
            for number, (row, score) in enumerate(zip(rows, scores), 1)
            if row >= 0
        ]
        for rows, scores in zip(*ranking)
    ]


def print_hits(
    query: str, hits: list[Hit], console: rich.console.Console
) -> None:
    """Prints the hits of one query."""
    title = tidy(query)
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
            str(hit.rank), f"{hit.score:.4f}", tidy(hit.id), tidy(hit.text)
        )
    console.print(table)


def tidy(text: str) -> str:
    """Returns the beginning of a text in one line, as rich's markup.

    It has no control characters, which a terminal would obey.
    """
    line = "".join(c if c.isprintable() else " " for c in text[: 8 * _WIDTH])
    line = " ".join(line.split())
    if len(line) > _WIDTH:
        line = line[: _WIDTH - 1] + "…"
    return rich.markup.escape(line)


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
            check(query)
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
    there are. "-" is standard input or output.
    """
    failed = 0
    is_stdin = queries == _STANDARD
    name = "standard input" if is_stdin else queries
    with (
        open(0 if is_stdin else queries, "rb", closefd=not is_stdin) as lines,
        _writing(output) as stream,
    ):
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
            for answered in answers:
                line = json.dumps(answered, ensure_ascii=False) + "\n"
                # JSON's escape, of a surrogate.
                stream.write(line.encode(errors="backslashreplace"))
            stream.flush()
    return failed


def _read(line, where):
    """Returns the query and the identifier of a line, or also an error."""
    found = {"query": None, "id": None}
    try:
        record = beir.parse_record(line, where)
        key = "query" if "query" in record else "text"
        name = record.get("id", record.get("_id"))
        found = {"query": record.get(key), "id": name}
        if beir.is_blank(beir.text(record, key, where)):
            raise ValueError(f"{where}: {key!r} is blank.")
    except ValueError as error:
        found["error"] = str(error)
    return found


@contextlib.contextmanager
def _writing(path):
    if str(path) == _STANDARD:
        yield sys.stdout.buffer
        return
    with replaced(path) as partial, open(partial, "wb") as stream:
        yield stream
