"""Measures rankings of collections, and indexes of the same embeddings.

`evaluate` ranks the documents in several ways. `measure_sizes` compares the
quality, bytes and time of indexes.
"""

import itertools
import time
from statistics import fmean, median

import numpy as np
import rich.console
import rich.table

from keras_fixedhead import pictures, retrieval
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.beir import Collection, read_collection
from keras_fixedhead.files import write_json
from keras_fixedhead.metrics import measure_queries, measure_rankings
from training.engine.configs import check_positive
from training.engine.preset import read_embedder
from training.retrieval.configs import (
    CollectionsConfig,
    EvaluateConfig,
    ReportConfig,
)

# Deep enough for the average precision, as in trec_eval.
_DEPTH = 1000
_REPORT_DEPTH = 100
_FIGURES = ("nDCG@10", "R@100")
_RESAMPLES = 2000
_TIMED_QUERIES = 50  # of each collection, in each round
_WITHIN = 0.002  # nDCG@10 that the index in the picture's title may lose
_PRECISIONS = {
    "float32": "float32",
    "int8": "int8",
    "binary": "1 bit",
    "binary_int8": "1 bit, rescored with int8",
}
_REDUCTIONS = {  # marker and label
    "native": ("o", "all dimensions"),
    "truncate": ("s", "first dimensions"),
    "pca": ("^", "principal components"),
}


def read_inputs(
    config: CollectionsConfig,
) -> tuple[dict[str, Collection], TextEncoder]:
    """Reads the collections, by their paths, and the model to embed them."""
    collections = {}
    for folder in config.collection:
        collection = read_collection(folder, config.split)
        if not collection.queries:
            raise ValueError(
                f"`split` {config.split} of {folder} judges no document "
                "relevant, so there is nothing to measure."
            )
        collections[str(folder)] = collection
    embedder = read_embedder(config.model, "model")
    return collections, TextEncoder(
        embedder, config.sequence_length, config.batch_size
    )


def evaluate(config: EvaluateConfig) -> dict[str, dict[str, dict[str, float]]]:
    """Returns and prints metrics by collection, way to rank, and name."""
    if config.output is not None and not config.output.parent.is_dir():
        raise ValueError(
            "`output` must be in a folder that exists. "
            f"Received: {config.output}"
        )
    check_positive(recall=min(config.recall, default=0))
    collections, encode = read_inputs(config)
    size = encode.embedder.embedding_size
    query_encoder = None
    if config.query_model is not None:
        embedder = read_embedder(config.query_model, "query_model")
        if embedder.embedding_size != size:
            raise ValueError(
                "`query_model` must return as many numbers as `model`, "
                f"{size}. Received: {str(config.query_model)!r}, which returns "
                f"{embedder.embedding_size}"
            )
        query_encoder = TextEncoder(
            embedder, config.sequence_length, config.batch_size
        )
    options = {
        name: getattr(config, name)
        for name in ("precision", "dimension", "reduction", "approximate")
    }
    fewest = min(len(each.documents) for each in collections.values())
    retrieval.check_index(fewest, size, **options)
    figures = ("nDCG@10", "AP", *(f"R@{k}" for k in config.recall), "RR@10")
    found = {}
    for folder, collection in collections.items():
        documents, queries = encode.embed_collection(
            collection, folder, query_encoder
        )
        depth = max(_DEPTH, *config.recall)
        rankings = _rank(collection, documents, queries, depth, options)
        found[folder] = {
            way: measure_rankings(
                ranking.documents, collection.relevant, figures
            )
            for way, ranking in rankings.items()
        }
        _print(found[folder], f"{folder}: {collection}")
    if len(found) > 1:
        measured = list(found.values())
        found["mean"] = {
            way: {
                name: fmean(each[way][name] for each in measured)
                for name in figures
            }
            for way in measured[0]
        }
        _print(found["mean"], f"mean of {len(collections)} collections")
    if config.output is not None:
        write_json(config.output, found)
    return found


def _rank(collection, documents, queries, depth, options):
    exact = retrieval.build_index(documents)
    model = retrieval.search_index(exact, queries, depth)
    rankings = {"exact": model}
    whole = options["dimension"] is None and not options["approximate"]
    if not whole or options["precision"] != "float32":
        index = retrieval.build_index(documents, **options)
        model = retrieval.search_index(index, queries, depth)
        rankings["index"] = model
    bm25 = retrieval.BM25(collection.documents)
    words = rankings["BM25"] = bm25.search(collection.queries, depth)
    rankings["fusion"] = retrieval.reciprocal_rank_fusion([model, words], depth)
    return rankings


def _print(figures, title):
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column("")
    for name in next(iter(figures.values())):
        table.add_column("MAP" if name == "AP" else name, justify="right")
    for way, values in figures.items():
        table.add_row(way, *(f"{value:.4f}" for value in values.values()))
    rich.console.Console().print(table)


def measure_sizes(config: ReportConfig) -> None:
    """Measures, prints a table, and writes report.json and report.png.

    A row is one way to keep and search embeddings, averaged over collections.
    `difference` is that of nDCG@10 to all dimensions, float32, exact, and
    `interval` its 95%, by a paired bootstrap of the queries. Times are the
    median of single queries on one thread, and of building the index.
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
        found = bm25.search(collection.queries, _REPORT_DEPTH)
        words.append(
            measure_rankings(found.documents, collection.relevant, _FIGURES)
        )
    rows = _rows(ways, measured, size)
    ndcg, recall = (fmean(each[name] for each in words) for name in _FIGURES)
    _print_sizes(rows, ndcg, recall)
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
            "rows": rows,
            "bm25": {"ndcg_at_10": ndcg, "recall_at_100": recall},
        },
    )
    names = ", ".join(folder.name for folder in config.collection)
    asked = sum(len(each.queries) for each in collections.values())
    stored = sum(len(each.documents) for each in collections.values())
    subtitle = f"{asked:,} queries, {stored:,} documents of {names}"
    figure = _draw(rows, ndcg, subtitle)
    pictures.save_figure(figure, config.output / "report.png")


def _ways(size, dimensions):
    """Returns the options of the index of each row, all dimensions first."""
    if dimensions is None:
        dimensions = (size // 2, size // 4)
    kept = itertools.product(dimensions, retrieval.REDUCTIONS)
    names = ("dimension", "reduction", "precision", "approximate")
    return [
        dict(zip(names, (*reduced, precision, approximate)))
        for reduced in [(None, "truncate"), *kept]
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
        indexes.append(index)
        ranked = retrieval.search_index(index, queries, _REPORT_DEPTH).documents
        found.append(
            {
                "seconds": seconds,
                "bytes": retrieval.bytes_per_document(index),
                "times": [],
                **measure_queries(ranked, collection.relevant, _FIGURES),
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
                    index.search(query, _REPORT_DEPTH)
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
        seconds = fmean(median(found["times"]) for found in each)
        rows.append(
            {
                "dimension": way["dimension"] or size,
                "reduction": way["reduction"] if way["dimension"] else "native",
                "precision": way["precision"],
                "search": "approximate" if way["approximate"] else "exact",
                "ndcg_at_10": fmean(found["nDCG@10"].mean() for found in each),
                "difference": fmean(values.mean() for values in differences),
                "interval": (float(low), float(high)),
                "recall_at_100": fmean(found["R@100"].mean() for found in each),
                "bytes_per_document": fmean(found["bytes"] for found in each),
                "milliseconds_per_query": 1000 * seconds,
                "build_seconds": fmean(found["seconds"] for found in each),
            }
        )
    return rows


def _print_sizes(rows, ndcg, recall):
    table = rich.table.Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("dimensions", "precision", "search"):
        table.add_column(name, no_wrap=True)
    for name in ("nDCG@10", "95% of diff.", "R@100", "bytes", "ms", "build s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        low, high = row["interval"]
        table.add_row(
            f"{row['dimension']} {row['reduction']}",
            row["precision"],
            "exact" if row["search"] == "exact" else "approx.",
            f"{row['ndcg_at_10']:.4f}",
            f"{low:+.3f} {high:+.3f}",
            f"{row['recall_at_100']:.3f}",
            f"{row['bytes_per_document']:,.0f}",
            f"{row['milliseconds_per_query']:.3f}",
            f"{row['build_seconds']:.2f}",
        )
    table.add_row("BM25", "", "", f"{ndcg:.4f}", "", f"{recall:.3f}")
    rich.console.Console().print(table)


def pareto_front(rows: list[dict]) -> list[dict]:
    """Returns the rows that no smaller one equals or beats, smallest first."""
    front: list[dict] = []
    for row in sorted(
        rows, key=lambda row: (row["bytes_per_document"], -row["ndcg_at_10"])
    ):
        if not front or row["ndcg_at_10"] > front[-1]["ndcg_at_10"]:
            front.append(row)
    return front


def _draw(rows, bm25, subtitle):
    figure = pictures.new_figure(12, 6)
    axes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    front = pareto_front(rows)
    most, *_ = rows
    enough = next(
        row
        for row in front
        if row["ndcg_at_10"] >= most["ndcg_at_10"] - _WITHIN
    )
    figure.suptitle(
        f"{enough['bytes_per_document']:,.0f} bytes a document keep nDCG@10 "
        f"within {_WITHIN} of {most['bytes_per_document']:,.0f} bytes\n"
        + subtitle
    )
    columns = {
        "bytes_per_document": "bytes per document in the index",
        "milliseconds_per_query": "milliseconds per query (one thread)",
    }
    colors = dict(zip(_PRECISIONS, pictures.COLORS))
    for axis, (x, label) in zip(axes, columns.items()):
        for row in rows:
            axis.plot(
                row[x],
                row["ndcg_at_10"],
                marker=_REDUCTIONS[row["reduction"]][0],
                color=colors[row["precision"]],
                fillstyle="full" if row["search"] == "exact" else "none",
            )
        axis.axhline(bm25, color=pictures.GREY, linestyle="--")
        pictures.use_plain_logs(axis)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    sizes = axes[0]
    sizes.set_ylabel("nDCG@10, mean of the collections")
    for precision, color in colors.items():
        sizes.plot([], "o", color=color, label=_PRECISIONS[precision])
    for marker, label in _REDUCTIONS.values():
        sizes.plot([], marker, color=pictures.GREY, label=label)
    hollow = {"color": pictures.GREY, "fillstyle": "none"}
    sizes.plot([], "o", label="approximate search", **hollow)
    points = [(row["bytes_per_document"], row["ndcg_at_10"]) for row in front]
    labelled = []
    for row, (x, y) in zip(front, points):
        # Labels of points that are nearly alike would collide.
        if not any(
            x < 1.3 * size and y < gain + 0.005 for size, gain in labelled
        ):
            labelled.append((x, y))
            style = {"textcoords": "offset points", "ha": "right"}
            sizes.annotate(f"d = {row['dimension']}", (x, y), (-3, 4), **style)
    label = "none smaller is as good, d dimensions"
    sizes.plot(*zip(*points), color=pictures.GREY, label=label, zorder=1)
    sizes.plot([], "--", color=pictures.GREY, label="BM25")
    sizes.margins(x=0.1)
    pictures.add_legend(figure, columns=5)
    return figure
