"""A judged collection searched by a model, by BM25 and by their fusion."""

import itertools
import typing

import rich.console
from rich.progress import MofNCompleteColumn

from export.encoder import Source
from export.index import index_folder
from export.search import report
from export.search.answers import RANKERS, rank
from keras_fixedhead import beir
from keras_fixedhead.bm25 import BM25
from keras_fixedhead.files import write_json
from keras_fixedhead.progress import progress


def measure_collection(
    source: Source, arguments: typing.Any, console: rich.console.Console
) -> int:
    """Measures the rankers; prints and writes the metrics.

    `arguments` are those of `export.search`. BM25 alone needs no `source`.
    """
    found = beir.read_collection(arguments.collection, arguments.split)
    if not found.queries:
        raise ValueError(
            f"`split` {arguments.split} judges no document relevant; there is "
            "nothing to measure."
        )
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    rankers = (arguments.ranker,) if arguments.ranker else RANKERS
    requests, version, model = 0, None, "BM25"
    if rankers == ("bm25",):
        bm25 = _bm25(arguments.index, found)
        rankings = rank(None, None, bm25, found.queries, rankers)
    else:
        with source.started() as started, started.open() as opened:
            rankings = _rank(
                started, opened, arguments, found, rankers, console
            )
        requests, model = opened.requests, opened.model
        version = model.version
        console.print(f"{requests:,} requests answered by {model}")
    metrics = report.measure_systems(rankings, found.relevant)
    title = f"{found}, {model}"
    report.print_examples(rankings, found)
    report.print_metrics(metrics, title)
    report.draw(
        output / "retrieval.png", metrics, rankings, found.relevant, title
    )
    write_json(
        output / "metrics.json",
        {
            "queries": len(found.queries),
            "documents": len(found.documents),
            "requests": requests,
            "model_version": version,
            **metrics,
        },
    )
    console.print(f"metrics and picture in {output}")
    return 0


def _bm25(index, found):
    """Returns the BM25 of an index of the collection, or makes one."""
    if index is None:
        return BM25(found.documents)
    made = index_folder.load(index)
    _check_documents(made, found)
    return made.bm25


def _rank(source, opened, arguments, found, rankers, console):
    """Ranks by an index of the collection, made here if none is passed."""
    if arguments.index is not None:
        made, embedded = index_folder.load(arguments.index), 0
        made.check(opened)
        _check_documents(made, found)
    else:
        made, embedded = index_folder.update(
            arguments.output / "index",
            arguments.collection,
            source,
            opened,
            options=None,
        )
    console.print(f"{made}, {embedded:,} of them embedded now")
    bm25 = None if rankers == ("encoder",) else made.bm25
    queries = found.queries
    with progress("queries", len(queries), MofNCompleteColumn()) as advance:
        return rank(
            opened, made.vectors, bm25, queries, rankers, on_batch=advance
        )


def _check_documents(made, found):
    """Raises a `ValueError` if an index is not of a collection."""
    wanted = zip(found.document_ids, found.documents)
    for row, (ours, theirs) in enumerate(
        itertools.zip_longest(made.documents, wanted), 1
    ):
        if ours != theirs:
            raise ValueError(
                f"`index` {made.folder} is not of the collection: document "
                f"{row} is {ours and ours[0]!r} there and "
                f"{theirs and theirs[0]!r} here, or has another text. Make an "
                "index of it, or leave `index` out."
            )
