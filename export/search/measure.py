"""A judged collection searched by a model, by BM25 and by their fusion."""

import itertools

from export import progress
from export.index import index_folder
from export.index.update import update
from export.search import report
from keras_fixedhead import beir, retrieval
from keras_fixedhead.files import write_json

# Lists are fused deeper than they are read, see `reciprocal_rank_fusion`.
_DEPTH = 100


def rank(opened, vectors, found):
    """Answers every query of a collection three ways.

    Args:
        opened: an `encoder.Encoder`.
        vectors: the FAISS index of the collection.
        found: the `Collection`.

    Returns:
        `{system: Ranking}` for the encoder, BM25 and their fusion.
    """
    with progress.documents("queries", len(found.queries)) as advance:
        embeddings = opened.embed(found.queries, "query", advance)
    by_encoder = retrieval.search_index(vectors, embeddings, _DEPTH)
    bm25 = retrieval.bm25(found.documents, found.queries, _DEPTH)
    fusion = retrieval.reciprocal_rank_fusion([by_encoder, bm25], _DEPTH)
    return {"encoder": by_encoder, "bm25": bm25, "fusion": fusion}


def measure(source, arguments, console):
    """Measures the three ways and shows and writes what came out."""
    found = beir.read_collection(arguments.collection, arguments.split)
    if not found.queries:
        raise ValueError(
            f"`split` {arguments.split} judges no document relevant; there is "
            "nothing to measure."
        )
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    with source.open() as opened:
        if arguments.index is not None:
            made, embedded = index_folder.load(arguments.index), 0
            made.check(opened)
            _check_documents(made, found)
        else:
            made, embedded = update(
                output / "index", arguments.collection, source, opened, None
            )
        console.print(f"{made}, {embedded:,} of them embedded now")
        rankings = rank(opened, made.vectors, found)
    figures = report.measure(rankings, found.relevant)
    title = (
        f"{len(found.queries):,} queries over {len(found.documents):,} "
        f"documents, {opened.model}"
    )
    report.print_examples(rankings, found)
    report.print_figures(figures, title)
    report.draw(
        output / "retrieval.png", figures, rankings, found.relevant, title
    )
    write_json(
        output / "metrics.json",
        {
            "queries": len(found.queries),
            "documents": len(found.documents),
            "requests": opened.requests,
            "model_version": opened.model.version,
            **figures,
        },
    )
    console.print(
        f"{opened.requests:,} requests answered by {opened.model}; figures "
        f"and picture in {output}"
    )
    return 0


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
