"""Ranks the documents of collections in several ways and measures each."""

import numpy as np
import rich.console
import rich.table

from keras_fixedhead import retrieval
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.beir import Collection, read_collection
from keras_fixedhead.files import write_json
from keras_fixedhead.metrics import measure_rankings
from training.engine.configs import check_positive
from training.engine.preset import read_embedder
from training.retrieval.configs import CollectionsConfig, EvaluateConfig

# Deep enough for the average precision, as in trec_eval.
_DEPTH = 1000


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
    query_encoder = _query_encoder(config, size)
    names = ("precision", "dimension", "reduction", "approximate")
    options = {name: getattr(config, name) for name in names}
    fewest = min(len(each.documents) for each in collections.values())
    retrieval.check_index(fewest, size, **options)
    depth = max(_DEPTH, *config.recall)
    figures = ("nDCG@10", "AP", *(f"R@{k}" for k in config.recall), "RR@10")
    found = {}
    for folder, collection in collections.items():
        documents, queries = encode.embed_collection(
            collection, folder, query_encoder
        )
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
                name: float(np.mean([each[way][name] for each in measured]))
                for name in figures
            }
            for way in measured[0]
        }
        _print(found["mean"], f"mean of {len(collections)} collections")
    if config.output is not None:
        write_json(config.output, found)
    return found


def _query_encoder(config, size):
    if config.query_model is None:
        return None
    embedder = read_embedder(config.query_model, "query_model")
    if embedder.embedding_size != size:
        raise ValueError(
            "`query_model` must return as many numbers as `model`, "
            f"{size}. Received: {str(config.query_model)!r}, which returns "
            f"{embedder.embedding_size}"
        )
    return TextEncoder(embedder, config.sequence_length, config.batch_size)


def _rank(collection, documents, queries, depth, options):
    exact = retrieval.build_index(documents)
    rankings = {"exact": retrieval.search_index(exact, queries, depth)}
    model = rankings["exact"]
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
