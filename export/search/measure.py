"""A judged collection searched by a model, by BM25 and by their fusion.

Shape letters: Q queries, K documents ranked.
"""

import itertools
import pathlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import rich.console
import rich.table
from rich.progress import MofNCompleteColumn

from export.index import index_folder, manifest
from export.index.manifest import Options
from export.model_source import Source
from export.search.answers import DEPTH, RANKERS, rank, tidy
from keras_fixedhead import beir, pictures
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
_CURVE = (1, 2, 5, 10, 20, 50, 100)
_EXAMPLES = 5
_HITS = 3
_COLORS = {
    "encoder": pictures.COLORS[0],
    "bm25": pictures.GREY,
    "fusion": pictures.COLORS[2],
}
_LABELS = {"encoder": "encoder", "bm25": "BM25", "fusion": "fusion"}


def measure_collection(
    source: Source,
    collection: pathlib.Path,
    split: str,
    output: pathlib.Path,
    index: pathlib.Path | None,
    ranker: str | None,
) -> None:
    """Measures one ranker or all; prints, writes and draws the metrics.

    Without `index` it makes one, in `output`. BM25 alone needs no `source`.
    """
    found = beir.read_collection(collection, split)
    if not found.queries:
        raise ValueError(f"`split` {split} judges no document relevant.")
    output.mkdir(parents=True, exist_ok=True)
    console = rich.console.Console()
    rankers = (ranker,) if ranker else RANKERS
    requests, version, title = 0, None, f"{found}, BM25"
    if rankers == ("bm25",):
        if index is None:
            bm25 = BM25(found.documents)
        else:
            bm25 = _load(index, found).bm25
        rankings = {"bm25": bm25.search(found.queries, DEPTH)}
    else:
        with source.started() as started, started.open() as opened:
            if index is not None:
                made, embedded = _load(index, found), 0
                made.check(opened)
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
                rankings = rank(
                    made, opened, found.queries, rankers, on_batch=advance
                )
        requests, version = opened.requests, opened.model.version
        title = f"{found}, {opened.model}"
        console.print(f"{requests:,} requests answered by {opened.model}")
    measured = {}
    for system, ranking in rankings.items():
        values = measure_rankings(
            ranking.documents, found.relevant, METRICS.values()
        )
        measured[system] = dict(zip(METRICS, values.values(), strict=True))
    print_examples(rankings, found)
    print_metrics(measured, title)
    draw(output / "retrieval.png", measured, rankings, found.relevant, title)
    metrics = {
        "queries": len(found.queries),
        "documents": len(found.documents),
        "requests": requests,
        "model_version": version,
        **measured,
    }
    write_json(output / "metrics.json", metrics)
    console.print(f"metrics and picture in {output}")


def _load(folder, found):
    """Opens an index, which must be of a collection."""
    made = index_folder.load(folder)
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
    return made


def print_examples(
    rankings: Mapping[str, Ranking], collection: beir.Collection
) -> None:
    """Prints a few queries with hits and the ranks of relevant documents."""
    system, first = next(iter(rankings.items()))
    table = rich.table.Table(
        title=f"Some queries, hits of {_LABELS[system]} (+ relevant), rank of "
        "the first relevant",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("query and hits", overflow="fold")
    for system in rankings:
        table.add_column(_LABELS[system], justify="right", no_wrap=True)
    count = min(_EXAMPLES, len(collection.queries))
    for query in np.linspace(0, len(collection.queries) - 1, count, dtype=int):
        relevant = collection.relevant[query]
        lines = [f"[bold]{tidy(collection.queries[query])}[/]"]
        for row in first.documents[query, :_HITS]:
            if row < 0:
                break
            name = tidy(collection.document_ids[row])
            is_relevant = row in relevant
            lines.append(f"[green]+ {name}[/]" if is_relevant else f"- {name}")
        ranks = [
            _first_rank(ranking.documents[query], relevant)
            for ranking in rankings.values()
        ]
        table.add_row("\n".join(lines), *ranks)
    rich.console.Console().print(table)


def _first_rank(documents, relevant):
    places = np.flatnonzero(np.isin(documents, list(relevant)))
    return str(places[0] + 1) if places.size else f">{len(documents)}"


def print_metrics(measured: dict[str, dict[str, float]], title: str) -> None:
    """Prints a table of each system's `METRICS`."""
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column("")
    for name in METRICS:
        table.add_column(name, justify="right")
    for system, values in measured.items():
        numbers = [f"{value:.3f}" for value in values.values()]
        table.add_row(_LABELS[system], *numbers)
    rich.console.Console().print(table)


def draw(
    path: pathlib.Path,
    measured: dict[str, dict[str, float]],
    rankings: Mapping[str, Ranking],
    relevant: Sequence[Collection[int]],
    title: str,
) -> None:
    """Draws metrics as bars, and recall against the documents read."""
    picture = pictures.new_figure(11, 4.8)
    bars, curve = picture.subplots(1, 2)
    width = 0.8 / len(measured)
    for index, (system, values) in enumerate(measured.items()):
        style = {"color": _COLORS[system], "label": _LABELS[system]}
        places = np.arange(len(METRICS)) + (index - len(measured) / 2) * width
        drawn = bars.bar(
            places, list(values.values()), width, align="edge", **style
        )
        bars.bar_label(drawn, fmt="%.2f", fontsize="small")
        documents = rankings[system].documents
        depths = [k for k in _CURVE if k <= documents.shape[1]]
        names = [f"R@{k}" for k in depths]
        recall = measure_rankings(documents, relevant, names)
        curve.plot(depths, list(recall.values()), marker="o", **style)
    bars.set_xticks(
        range(len(METRICS)), ("nDCG@10", "recall@1", "recall@10", "MRR@10")
    )
    bars.set_ylabel("mean over the queries (0 to 1)")
    pictures.use_plain_logs(curve)
    curve.set_xlabel("k, documents read")
    curve.set_ylabel("recall@k (fraction found)")
    curve.grid(alpha=0.3)
    pictures.add_legend(picture)
    best = max(measured, key=lambda system: measured[system]["ndcg@10"])
    value = measured[best]["ndcg@10"]
    which = "the best nDCG@10," if len(measured) > 1 else "nDCG@10"
    picture.suptitle(f"{_LABELS[best]} has {which} {value:.3f}\n{title}")
    pictures.save_figure(picture, path)
