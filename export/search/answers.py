"""Queries to the documents of an index.

Shape letters: Q queries.
"""

from export.search import report
from keras_fixedhead import retrieval

RANKERS = ("encoder", "bm25", "fusion")
# Lists are fused deeper than they are read, see `reciprocal_rank_fusion`.
_DEPTH = 100


def rank(opened, vectors, bm25, queries, rankers, k=_DEPTH, on_batch=None):
    """Ranks the documents of queries in one way or several.

    Args:
        opened: the `encoder.Encoder` of the index; None for BM25 alone.
        vectors: the FAISS index; None for BM25 alone.
        bm25: the `BM25`; None for the encoder alone.
        queries: list of Q texts, each without a `query_file.problem`.
        rankers: which of `RANKERS`.
        k: int, the most documents of a query.
        on_batch: function called with the number of queries of each batch
            that is embedded.

    Returns:
        `{ranker: Ranking}`, in the order of `rankers`.
    """
    found, depth = {}, max(k, _DEPTH) if "fusion" in rankers else k
    if rankers != ("bm25",):
        embeddings = opened.embed(queries, "query", on_batch)
        found["encoder"] = retrieval.search_index(vectors, embeddings, depth)
    if rankers != ("encoder",):
        found["bm25"] = bm25.search(queries, depth)
    if "fusion" in rankers:
        found["fusion"] = retrieval.reciprocal_rank_fusion(
            list(found.values()), k
        )
    return {ranker: found[ranker] for ranker in rankers}


def answer(opened, searched, queries, k, ranker):
    """Finds the documents of queries.

    Args:
        opened: the `encoder.Encoder` of the index; None for BM25.
        searched: an `index_folder.Index`.
        queries: list of Q texts, each without a `query_file.problem`.
        k: int, the most hits of a query.
        ranker: which of `RANKERS`.

    Returns:
        A list of Q lists of `report.Hit`s, best first.
    """
    bm25 = None if ranker == "encoder" else searched.bm25
    ranking = rank(opened, searched.vectors, bm25, queries, (ranker,), k)[
        ranker
    ]
    return [
        [
            report.Hit(number, *searched.documents[row], float(score))
            for number, (row, score) in enumerate(zip(rows, scores), 1)
            if row >= 0
        ]
        for rows, scores in zip(ranking.documents, ranking.scores)
    ]
