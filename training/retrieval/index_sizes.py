"""Quality, bytes and time of indexes of the same embeddings."""

import dataclasses
import functools
import pathlib
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
from training.retrieval.evaluation import read_collections, read_encoder

NATIVE = "native"


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to keep and search embeddings, averaged over collections.

    `reduction` is `"native"`, `"truncate"` or `"pca"`; `search` `"exact"` or
    `"approximate"`. `difference` is that of nDCG@10 to all dimensions, float32,
    exact; `interval` its 95%, by a paired bootstrap of the queries. Times are
    the median of single queries on one thread, and of building the index on
    all threads.
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


def measure_sizes(config: ReportConfig) -> list[Row]:
    """Measures, prints a table, and writes report.json and report.png.

    Returns a row for each way to keep and search embeddings.
    """
    check_positive(timed_queries=config.timed_queries, rounds=config.rounds)
    collections = read_collections(config)
    config.output.mkdir(parents=True, exist_ok=True)
    pictures.check_picture(config.output / "report.png")
    encode = read_encoder(config)
    ways = _ways(encode.size, config.dimensions)
    fewest = min(len(each.documents) for each in collections.values())
    for way in ways:
        retrieval.check_index(fewest, encode.size, **way)
    measured, words = [], []
    for folder, collection in collections.items():
        documents, queries = encode.embed_collection(collection, folder)
        measured.append(_measure(config, ways, documents, queries, collection))
        found = retrieval.bm25(collection.documents, collection.queries, _DEPTH)
        words.append(
            measure_rankings(found.documents, collection.relevant, _FIGURES)
        )
    rows = _rows(ways, measured, encode.size, config.seed)
    bm25 = {name: _mean(each[name] for each in words) for name in _FIGURES}
    sizes = {
        folder: {
            "documents": len(collection.documents),
            "queries": len(collection.queries),
        }
        for folder, collection in collections.items()
    }
    title = (
        f"{config.model}, {sum(n['queries'] for n in sizes.values()):,} "
        f"queries, {sum(n['documents'] for n in sizes.values()):,} documents "
        f"of {', '.join(folder.name for folder in config.collection)}"
    )
    _print(rows, bm25, title)
    write_json(
        config.output / "report.json",
        {
            "model": str(config.model),
            "collections": sizes,
            "rows": [dataclasses.asdict(row) for row in rows],
            "bm25": {
                "ndcg_at_10": bm25["nDCG@10"],
                "recall_at_100": bm25["R@100"],
            },
        },
    )
    draw_report(rows, bm25["nDCG@10"], title, config.output / "report.png")
    return rows


def _ways(size, dimensions):
    """Returns the options of the index of each row, all dimensions first."""
    if dimensions is None:
        dimensions = (size // 2, size // 4)
    kept = [{"dimension": None, "reduction": "truncate"}]
    kept += [
        {"dimension": dimension, "reduction": reduction}
        for dimension in dimensions
        for reduction in retrieval.REDUCTIONS
    ]
    return [
        {**each, "precision": precision, "approximate": approximate}
        for each in kept
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
                for row in range(min(len(queries), config.timed_queries)):
                    began = time.perf_counter()
                    index.search(queries[row : row + 1], _DEPTH)
                    seconds = time.perf_counter() - began
                    figures["times"].append(1000 * seconds)
    finally:
        faiss.omp_set_num_threads(threads)
    return found


def _rows(ways, measured, size, seed):
    """Averages over collections, which have equal weight."""
    rng = np.random.default_rng(seed)
    counts = [len(found[0]["nDCG@10"]) for found in measured]
    draws = [rng.integers(n, size=(_RESAMPLES, n)) for n in counts]
    rows = []
    for number, way in enumerate(ways):
        each = [found[number] for found in measured]
        differences = [
            found[number]["nDCG@10"] - found[0]["nDCG@10"] for found in measured
        ]
        resampled = [
            difference[draw].mean(axis=1)
            for difference, draw in zip(differences, draws)
        ]
        low, high = np.quantile(np.mean(resampled, axis=0), (0.025, 0.975))
        rows.append(
            Row(
                dimension=way["dimension"] or size,
                reduction=way["reduction"] if way["dimension"] else NATIVE,
                precision=way["precision"],
                search="approximate" if way["approximate"] else "exact",
                ndcg_at_10=_mean(found["nDCG@10"].mean() for found in each),
                difference=_mean(values.mean() for values in differences),
                interval=(float(low), float(high)),
                recall_at_100=_mean(found["R@100"].mean() for found in each),
                bytes_per_document=_mean(found["bytes"] for found in each),
                milliseconds_per_query=_mean(
                    statistics.median(found["times"]) for found in each
                ),
                build_seconds=_mean(found["seconds"] for found in each),
            )
        )
    return rows


def _mean(values):
    return float(np.mean(list(values)))


def _print(rows, bm25, title):
    table = rich.table.Table(
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
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
    table.add_row(
        "BM25", "", "", f"{bm25['nDCG@10']:.4f}", "", f"{bm25['R@100']:.3f}"
    )
    rich.console.Console().print(table)


_COLORS = {
    "float32": "#4269d0",
    "int8": "#d9541e",
    "binary": "#2f9e6e",
    "binary_int8": "#8a5bc7",
}
_GREY, _LIGHT_GREY = "#6b6b6b", "#b0b0b0"
_REDUCTIONS = {  # marker and label
    NATIVE: ("o", "all dimensions"),
    "truncate": ("s", "first dimensions"),
    "pca": ("^", "principal components"),
}


def pareto_front(rows: list[Row]) -> list[Row]:
    """Returns the rows that no smaller one equals or beats, smallest first."""
    front: list[Row] = []
    for row in sorted(
        rows, key=lambda row: (row.bytes_per_document, -row.ndcg_at_10)
    ):
        if not front or row.ndcg_at_10 > front[-1].ndcg_at_10:
            front.append(row)
    return front


def draw_report(
    rows: list[Row], bm25: float, title: str, output: pathlib.Path
) -> None:
    """Draws quality against bytes, and against time.

    The dashed line, `bm25`, is the nDCG@10 of BM25.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator

    figure = pictures.new_figure(13, 6)
    sizes, times = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    front = pareto_front(rows)
    for axis, x in (
        (sizes, "bytes_per_document"),
        (times, "milliseconds_per_query"),
    ):
        axis.axhline(bm25, color=_GREY, linestyle="--", linewidth=1)
        for row in rows:
            color = _COLORS[row.precision]
            axis.plot(
                getattr(row, x),
                row.ndcg_at_10,
                marker=_REDUCTIONS[row.reduction][0],
                markersize=8,
                linestyle="none",
                markeredgecolor=color,
                markerfacecolor=color if row.search == "exact" else "white",
            )
        axis.set_xscale("log")
        axis.grid(color="#e5e5e5")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    sizes.plot(
        [row.bytes_per_document for row in front],
        [row.ndcg_at_10 for row in front],
        color=_LIGHT_GREY,
        linewidth=1.5,
        zorder=1,
    )
    exact = [row for row in rows if row.search == "exact"]
    for row in exact:
        sizes.annotate(
            row.dimension,
            (row.bytes_per_document, row.ndcg_at_10),
            xytext=(0, 8 if row.reduction == "pca" else -16),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=_COLORS[row.precision],
        )
    sizes.annotate(
        "BM25",
        (1, bm25),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color=_GREY,
    )
    ticks = sorted({round(row.bytes_per_document) for row in exact})
    ticks = [
        tick
        for number, tick in enumerate(ticks)
        if not number or tick > 1.25 * ticks[number - 1]
    ]
    sizes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    sizes.minorticks_off()
    sizes.set_xlabel("bytes per document in the index")
    sizes.set_ylabel("nDCG@10")
    times.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    times.xaxis.set_major_formatter("{x:g}")
    times.minorticks_off()
    times.set_xlabel("milliseconds per query, one thread")

    used = {row.reduction for row in rows}
    sample = functools.partial(Line2D, [], [], linestyle="none")
    handles = [
        *(
            sample(color=color, marker="o", label=name)
            for name, color in _COLORS.items()
        ),
        *(
            sample(color=_GREY, marker=marker, label=label)
            for name, (marker, label) in _REDUCTIONS.items()
            if name in used
        ),
        sample(
            color=_GREY,
            marker="o",
            markerfacecolor="white",
            label="approximate search",
        ),
        Line2D([], [], color=_LIGHT_GREY, label="Pareto front"),
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(title, fontsize=11)
    pictures.save_figure(figure, output)
