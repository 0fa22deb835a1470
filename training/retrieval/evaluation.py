"""Ranks the documents of collections in every way, and measures that."""

import pathlib

import rich.console
import rich.table

from keras_fixedhead import retrieval
from keras_fixedhead.beir import Collection, read_collection
from keras_fixedhead.files import write_json
from keras_fixedhead.metrics import measure_rankings
from keras_fixedhead.text_encoder import TextEncoder
from training.engine.preset import read_embedder
from training.retrieval.evaluation_configs import EvaluateConfig

# Deep enough for the average precision, as in trec_eval.
_DEPTH = 1000


def read_judged(folder: pathlib.Path, split: str) -> Collection:
    """Reads a collection that has something to measure.

    Args:
        folder: A BEIR folder.
        split: Name of the judgements.

    Raises:
        OSError: A file is missing.
        ValueError: The folder is malformed, or no document is relevant.
    """
    collection = read_collection(folder, split)
    if not collection.queries:
        raise ValueError(
            f"`split` {split} of {folder} judges no document relevant; there "
            "is nothing to measure."
        )
    return collection


def mean(figures: list[dict[str, float]]) -> dict[str, float]:
    """Averages each figure over collections."""
    return {
        name: sum(each[name] for each in figures) / len(figures)
        for name in figures[0]
    }


def evaluate(config: EvaluateConfig) -> dict[str, dict[str, dict[str, float]]]:
    """Measures, prints tables, and writes `output`.

    Args:
        config: What is measured, and on what.

    Returns:
        Figures, by their names in ir-measures, of each way to rank, of each
        collection by its path; with several collections also of their
        `mean`.

    Raises:
        OSError: A file is missing or cannot be written.
        ValueError: A collection is malformed or has nothing to measure, or
            there can be no such index of it.
    """
    if config.output is not None and not config.output.parent.is_dir():
        raise ValueError(
            "`output` must be in a folder that exists. "
            f"Received: {config.output}"
        )
    if not config.recall or min(config.recall) < 1:
        raise ValueError(
            f"`recall` must be positive numbers. Received: {config.recall}"
        )
    collections = {
        str(folder): read_judged(folder, config.split)
        for folder in config.collection
    }
    encode = TextEncoder(
        read_embedder(config.model, "model"),
        config.sequence_length,
        config.batch_size,
    )
    options = {
        "precision": config.precision,
        "dimension": config.dimension,
        "reduction": config.reduction,
        "approximate": config.approximate,
    }
    fewest = min(len(each.documents) for each in collections.values())
    retrieval.check_index(fewest, encode.size, **options)
    depth = max(_DEPTH, *config.recall)
    names = (
        "nDCG@10",
        "AP",
        *(f"R@{k}" for k in config.recall),
        "RR@10",
    )
    found = {}
    for folder, collection in collections.items():
        documents, queries = encode.embed_collection(collection, folder)
        found[folder] = {
            way: measure_rankings(ranking.documents, collection.relevant, names)
            for way, ranking in _rank(
                collection, documents, queries, depth, options
            ).items()
        }
        _print(
            found[folder],
            f"{folder}: {collection}",
        )
    if len(found) > 1:
        ways = next(iter(found.values()))
        found["mean"] = {
            way: mean([figures[way] for figures in found.values()])
            for way in ways
        }
        _print(found["mean"], f"mean of {len(collections)} collections")
    if config.output is not None:
        write_json(config.output, found)
    return found


def _rank(collection, documents, queries, depth, options):
    """The ranking of each way to rank."""
    exact = retrieval.build_index(documents)
    rankings = {"exact": retrieval.search_index(exact, queries, depth)}
    model = rankings["exact"]
    if (
        options["dimension"]
        or options["approximate"]
        or (options["precision"] != "float32")
    ):
        index = retrieval.build_index(documents, **options)
        model = retrieval.search_index(index, queries, depth)
        rankings["index"] = model
    words = retrieval.bm25(collection.documents, collection.queries, depth)
    rankings["BM25"] = words
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
