"""Answers queries from an index, for a program and in a terminal."""

import contextlib
import typing
from collections.abc import Callable

import rich.console
import rich.markup

from export.batches import OnBatch
from export.encoder import Encoder
from export.index.faiss_index import VectorIndex
from export.index.index_folder import Index
from export.search import query_file, report
from export.search.report import Hit
from keras_fixedhead import retrieval
from keras_fixedhead.ranking import BM25, Ranking

RANKERS = ("encoder", "bm25", "fusion")
# Fused lists are deeper than the result, see `reciprocal_rank_fusion`.
_DEPTH = 100


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

    No query has a `query_file.problem`. BM25 alone needs no `opened` and no
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
            problem = query_file.problem(query)
            if problem:
                raise ValueError(f"the query {problem}")
            report.print_hits(query, ask([query])[0], console)
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print()
        # A server that is away now may be back at the next query.
        except (ValueError, OSError) as error:
            message = rich.markup.escape(str(error))
            console.print(f"[red]error:[/] {message}")
