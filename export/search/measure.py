"""A judged collection searched by a model, by BM25 and by their fusion.

Shape letters: Q queries, K documents ranked.
"""

import itertools
import pathlib
from collections.abc import Collection, Mapping, Sequence

import rich.console
import rich.table
from rich.progress import MofNCompleteColumn

from export.index import index_folder, manifest
from export.index.manifest import Options
from export.model_source import Source
from export.search.answers import RANKERS, rank, searches_of
from keras_fixedhead import beir
from keras_fixedhead.files import write_json
from keras_fixedhead.metrics import measure_rankings
from keras_fixedhead.progress import progress
from keras_fixedhead.retrieval import BM25, Ranking

METRICS = {
    "ndcg@10": "nDCG@10",
    "recall@1": "R@1",
    "recall@10": "R@10",
    "mrr@10": "RR@10",
}
_LABELS = {"encoder": "encoder", "bm25": "BM25", "fusion": "fusion"}


def measure_collection(
    source: Source,
    collection: pathlib.Path,
    split: str,
    output: pathlib.Path,
    index: pathlib.Path | None,
    ranker: str | None,
    console: rich.console.Console,
) -> None:
    """Measures one ranker or all; prints and writes the metrics.

    Without `index` it makes one, in `output`. BM25 alone needs no `source`.
    """
    found = beir.read_collection(collection, split)
    if not found.queries:
        raise ValueError(
            f"`split` {split} judges no document relevant; there is nothing "
            "to measure."
        )
    output.mkdir(parents=True, exist_ok=True)
    rankers = (ranker,) if ranker else RANKERS
    requests, version, title = 0, None, f"{found}, BM25"
    if rankers == ("bm25",):
        if index is not None:
            made = index_folder.load(index)
            _check_documents(made, found)
            bm25 = made.bm25
        else:
            bm25 = BM25(found.documents)
        rankings = rank({"bm25": bm25.search}, found.queries, rankers)
    else:
        with source.started() as started, started.open() as opened:
            if index is not None:
                made, embedded = index_folder.load(index), 0
                made.check(opened)
                _check_documents(made, found)
            else:
                kept = manifest.read(output / "index")
                options = Options(**kept["options"]) if kept else Options()
                made, embedded = index_folder.update(
                    output / "index", collection, started, opened, options
                )
            console.print(f"{made}, {embedded:,} of them embedded now")
            with progress(
                "queries", len(found.queries), MofNCompleteColumn()
            ) as advance:
                searches = searches_of(made, opened, rankers, advance)
                rankings = rank(searches, found.queries, rankers)
        requests, version = opened.requests, opened.model.version
        title = f"{found}, {opened.model}"
        console.print(f"{requests:,} requests answered by {opened.model}")
    measured = measure_systems(rankings, found.relevant)
    print_metrics(measured, title)
    write_json(
        output / "metrics.json",
        {
            "queries": len(found.queries),
            "documents": len(found.documents),
            "requests": requests,
            "model_version": version,
            **measured,
        },
    )
    console.print(f"metrics in {output}")


def _check_documents(made, found):
    """Raises a `ValueError` if an index is not of a collection."""
    wanted = zip(found.document_ids, found.documents)
    if any(x != y for x, y in itertools.zip_longest(made.documents, wanted)):
        raise ValueError(
            f"`index` {made.folder} is not of the collection. Make an index of "
            "it, or leave `index` out."
        )


def measure_systems(
    rankings: Mapping[str, Ranking], relevant: Sequence[Collection[int]]
) -> dict[str, dict[str, float]]:
    """Returns the `METRICS` of each system's ranking of the same Q queries, of
    which `relevant` are the rows of relevant documents."""
    measured = {}
    for system, ranking in rankings.items():
        found = measure_rankings(ranking.documents, relevant, METRICS.values())
        measured[system] = dict(zip(METRICS, found.values(), strict=True))
    return measured


def print_metrics(measured: dict[str, dict[str, float]], title: str) -> None:
    """Prints the table of `measure_systems`."""
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column("")
    for name in METRICS:
        table.add_column(name, justify="right")
    for system, values in measured.items():
        numbers = [f"{value:.3f}" for value in values.values()]
        table.add_row(_LABELS[system], *numbers)
    rich.console.Console().print(table)
