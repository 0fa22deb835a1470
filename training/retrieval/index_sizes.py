"""Quality, bytes and time of indexes of the same embeddings."""

import dataclasses
import itertools
import statistics
import time

import numpy as np
import rich.console
import rich.table

from keras_fixedhead import pictures, retrieval
from keras_fixedhead.files import write_json
from keras_fixedhead.metrics import measure_queries, measure_rankings
from training.engine.configs import check_positive
from training.retrieval.configs import ReportConfig
from training.retrieval.evaluation import read_inputs


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to keep and search embeddings, averaged over collections.

    `difference` is that of nDCG@10 to all dimensions, float32, exact, and
    `interval` its 95%, by a paired bootstrap of the queries. Times are the
    median of single queries on one thread, and of building the index.
    """

    dimension: int
    reduction: str
    precision: str
    search: str
    ndcg_at_10: float
    difference: float
    interval: tuple[float, float]
    recall_at_100: float
    bytes_per_document: float
    milliseconds_per_query: float
    build_seconds: float


_DEPTH = 100
_FIGURES = ("nDCG@10", "R@100")
_RESAMPLES = 2000
_TIMED_QUERIES = 50  # of each collection, in each round
_COLORS = {"float32": "C0", "int8": "C1", "binary": "C2", "binary_int8": "C4"}
_REDUCTIONS = {  # marker and label
    "native": ("o", "all dimensions"),
    "truncate": ("s", "first dimensions"),
    "pca": ("^", "principal components"),
}


def measure_sizes(config: ReportConfig) -> list[Row]:
    """Measures, prints a table, and writes report.json and report.png.

    Returns a row for each way to keep and search embeddings.
    """
    check_positive(rounds=config.rounds)
    config.output.mkdir(parents=True, exist_ok=True)
    pictures.check_picture(config.output / "report.png")
    collections, encode = read_inputs(config)
    size = encode.embedder.embedding_size
    ways = _ways(size, config.dimensions)
    fewest = min(len(each.documents) for each in collections.values())
    for way in ways:
        retrieval.check_index(fewest, size, **way)
    measured, words = [], []
    for folder, collection in collections.items():
        documents, queries = encode.embed_collection(collection, folder)
        measured.append(_measure(config, ways, documents, queries, collection))
        bm25 = retrieval.BM25(collection.documents)
        found = bm25.search(collection.queries, _DEPTH)
        words.append(
            measure_rankings(found.documents, collection.relevant, _FIGURES)
        )
    rows = _rows(ways, measured, size)
    ndcg, recall = (_mean(each[name] for each in words) for name in _FIGURES)
    _print(rows, ndcg, recall)
    write_json(
        config.output / "report.json",
        {
            "model": str(config.model),
            "collections": {
                folder: {
                    "documents": len(collection.documents),
                    "queries": len(collection.queries),
                }
                for folder, collection in collections.items()
            },
            "rows": [dataclasses.asdict(row) for row in rows],
            "bm25": {"ndcg_at_10": ndcg, "recall_at_100": recall},
        },
    )
    names = ", ".join(folder.name for folder in config.collection)
    title = f"{config.model}, {names}"
    _draw(rows, ndcg, title, config.output / "report.png")
    return rows


def _ways(size, dimensions):
    """Returns the options of the index of each row, all dimensions first."""
    if dimensions is None:
        dimensions = (size // 2, size // 4)
    kept = [(None, "truncate")]
    kept += itertools.product(dimensions, retrieval.REDUCTIONS)
    return [
        {
            "dimension": dimension,
            "reduction": reduction,
            "precision": precision,
            "approximate": approximate,
        }
        for dimension, reduction in kept
        for precision in retrieval.PRECISIONS
        for approximate in (False, True)
    ]


def _measure(config, ways, documents, queries, collection):
    """Measures each index of one collection, in the order of `ways`."""
    import faiss

    indexes, found = [], []
    for way in ways:
        began = time.perf_counter()
        index = retrieval.build_index(documents, **way)
        seconds = time.perf_counter() - began
        ranking = retrieval.search_index(index, queries, _DEPTH)
        indexes.append(index)
        found.append(
            {
                "seconds": seconds,
                "bytes": retrieval.bytes_per_document(index),
                "times": [],
                **measure_queries(
                    ranking.documents, collection.relevant, _FIGURES
                ),
            }
        )
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        # In turns, so that other work on the machine slows all of them.
        for _ in range(config.rounds):
            for index, figures in zip(indexes, found):
                for query in queries[:_TIMED_QUERIES, None]:
                    began = time.perf_counter()
                    index.search(query, _DEPTH)
                    figures["times"].append(time.perf_counter() - began)
    finally:
        faiss.omp_set_num_threads(threads)
    return found


def _rows(ways, measured, size):
    rng = np.random.default_rng(0)
    counts = [len(found[0]["nDCG@10"]) for found in measured]
    draws = [rng.integers(n, size=(_RESAMPLES, n)) for n in counts]
    rows = []
    for way, *each in zip(ways, *measured):
        differences = [
            found["nDCG@10"] - native[0]["nDCG@10"]
            for found, native in zip(each, measured)
        ]
        resampled = [
            difference[draw].mean(axis=1)
            for difference, draw in zip(differences, draws)
        ]
        low, high = np.quantile(np.mean(resampled, axis=0), (0.025, 0.975))
        seconds = _mean(statistics.median(found["times"]) for found in each)
        rows.append(
            Row(
                dimension=way["dimension"] or size,
                reduction=way["reduction"] if way["dimension"] else "native",
                precision=way["precision"],
                search="approximate" if way["approximate"] else "exact",
                ndcg_at_10=_mean(found["nDCG@10"].mean() for found in each),
                difference=_mean(values.mean() for values in differences),
                interval=(float(low), float(high)),
                recall_at_100=_mean(found["R@100"].mean() for found in each),
                bytes_per_document=_mean(found["bytes"] for found in each),
                milliseconds_per_query=1000 * seconds,
                build_seconds=_mean(found["seconds"] for found in each),
            )
        )
    return rows


def _mean(values):
    return float(np.mean(list(values)))


def _print(rows, ndcg, recall):
    table = rich.table.Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("dimensions", "precision", "search"):
        table.add_column(name, no_wrap=True)
    for name in ("nDCG@10", "95% of diff.", "R@100", "bytes", "ms", "build s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        low, high = row.interval
        table.add_row(
            f"{row.dimension} {row.reduction}",
            row.precision,
            "exact" if row.search == "exact" else "approx.",
            f"{row.ndcg_at_10:.4f}",
            f"{low:+.3f} {high:+.3f}",
            f"{row.recall_at_100:.3f}",
            f"{row.bytes_per_document:,.0f}",
            f"{row.milliseconds_per_query:.3f}",
            f"{row.build_seconds:.2f}",
        )
    table.add_row("BM25", "", "", f"{ndcg:.4f}", "", f"{recall:.3f}")
    rich.console.Console().print(table)


def pareto_front(rows: list[Row]) -> list[Row]:
    """Returns the rows that no smaller one equals or beats, smallest first."""
    front: list[Row] = []
    for row in sorted(
        rows, key=lambda row: (row.bytes_per_document, -row.ndcg_at_10)
    ):
        if not front or row.ndcg_at_10 > front[-1].ndcg_at_10:
            front.append(row)
    return front


def _draw(rows, bm25, title, output):
    figure = pictures.new_figure(13, 6)
    sizes, times = figure.subplots(1, 2, sharey=True)
    for axis, x in (
        (sizes, "bytes_per_document"),
        (times, "milliseconds_per_query"),
    ):
        for row in rows:
            axis.plot(
                getattr(row, x),
                row.ndcg_at_10,
                marker=_REDUCTIONS[row.reduction][0],
                color=_COLORS[row.precision],
                fillstyle="full" if row.search == "exact" else "none",
            )
        axis.axhline(bm25, color="grey", linestyle="--", label="BM25")
        axis.set(xscale="log", xlabel=x.replace("_", " "), ylabel="nDCG@10")
        axis.grid(alpha=0.3)
    for name, color in _COLORS.items():
        sizes.plot([], "o", color=color, label=name)
    for marker, label in _REDUCTIONS.values():
        sizes.plot([], marker, color="grey", label=label)
    sizes.plot(
        [], "o", color="grey", fillstyle="none", label="approximate search"
    )
    front = pareto_front(rows)
    for row in front:
        point = (row.bytes_per_document, row.ndcg_at_10)
        sizes.annotate(row.dimension, point, fontsize=8)
    sizes.plot(
        [row.bytes_per_document for row in front],
        [row.ndcg_at_10 for row in front],
        color="lightgrey",
        label="Pareto front",
        zorder=1,
    )
    sizes.legend()
    figure.suptitle(title)
    pictures.save_figure(figure, output)
