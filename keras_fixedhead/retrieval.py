"""Ranking documents: exact search over embeddings, BM25, and their fusion.

Shape letters: Q queries, N documents, D embedding size, K documents ranked.

The packages behind it come with `pip install keras_fixedhead[retrieval]`.
"""

import typing
from collections.abc import Sequence

import numpy as np


class Ranking(typing.NamedTuple):
    """The best documents of each query, best first.

    Attributes:
        documents: int64 array `[Q, K]`, the documents' row numbers; -1 where
            fewer than K were found.
        scores: float32 array `[Q, K]`, higher is better; -inf at -1.
    """

    documents: np.ndarray
    scores: np.ndarray


def build_index(embeddings):
    """Builds an index that is searched exactly, by inner product.

    On normalized embeddings the inner product is the cosine.

    Args:
        embeddings: float array `[N, D]`, one row per document.

    Returns:
        A `faiss.IndexFlatIP`, which `faiss.write_index` saves.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: `embeddings` is not a matrix of finite numbers, or has no
            row.
    """
    faiss = _import("faiss")
    embeddings = _matrix("embeddings", embeddings)
    if not len(embeddings):
        raise ValueError(
            "`embeddings` must hold at least one document. "
            f"Received: shape {embeddings.shape}"
        )
    index = faiss.IndexFlatIP(embeddings.shape[1])
    index.add(embeddings)
    return index


def search_index(index, embeddings, k):
    """Finds the documents with the highest scores for each query.

    Args:
        index: A FAISS index of N documents, as `build_index` makes.
        embeddings: float array `[Q, D]`, one row per query.
        k: int, how many documents to rank.

    Returns:
        A `Ranking` with K = min(k, N), scored by the index's measure.

    Raises:
        ValueError: `embeddings` is not a matrix of finite numbers of the
            index's width, or `k` is not positive.
    """
    embeddings = _matrix("embeddings", embeddings)
    if embeddings.shape[1] != index.d:
        raise ValueError(
            f"`embeddings` must have the index's width, {index.d}. "
            f"Received: shape {embeddings.shape}"
        )
    k = min(_positive("k", k), index.ntotal)
    scores, documents = index.search(embeddings, k)
    return Ranking(documents, np.where(documents >= 0, scores, -np.inf))


def bm25(documents, queries, k, k1=1.5, b=0.75):
    """Ranks documents by BM25 over English words.

    Words are lower-cased, English stop words left out, the rest stemmed
    (Snowball). The scoring is Lucene's variant, as in the package `bm25s`
    (Lù 2024, 'BM25S: Orders of magnitude faster lexical search via eager
    sparse scoring'), with its default parameters.

    Args:
        documents: List of N strings.
        queries: List of Q strings.
        k: int, how many documents to rank.
        k1: float, how slowly repeated words stop counting.
        b: float from 0 to 1, how much long documents are held back.

    Returns:
        A `Ranking` with K = min(k, N). Documents that share no word with
        the query are not in it.

    Raises:
        ImportError: bm25s or PyStemmer is not installed.
        ValueError: `documents` holds no word, or `k` is not positive.
    """
    bm25s = _import("bm25s")
    stemmer = _import("Stemmer").Stemmer("english")
    k = min(_positive("k", k), len(documents))

    def tokenize(texts, **kwargs):
        return bm25s.tokenize(
            list(texts),
            stopwords="english",
            stemmer=stemmer,
            show_progress=False,
            **kwargs,
        )

    words = tokenize(documents)
    if not words.vocab:
        raise ValueError(
            "`documents` must hold words other than stop words. "
            f"Received: {len(documents)} documents with none"
        )
    index = bm25s.BM25(k1=k1, b=b)
    index.index(words, show_progress=False)
    # NumPy's top k: the automatic choice loads JAX where it is installed.
    found, scores = index.retrieve(
        tokenize(queries, return_ids=False),
        k=k,
        show_progress=False,
        backend_selection="numpy",
    )
    shared = scores > 0
    return Ranking(
        np.where(shared, found, -1).astype("int64"),
        np.where(shared, scores, -np.inf).astype("float32"),
    )


def reciprocal_rank_fusion(rankings: Sequence[Ranking], k, constant=60):
    """Fuses rankings of the same queries by the ranks alone.

    A document scores the sum of 1 / (constant + rank) over the rankings that
    hold it, ranks counted from 1; equal scores keep the order of the
    documents. Source: Cormack, Clarke and Büttcher 2009, 'Reciprocal Rank
    Fusion Outperforms Condorcet and Individual Rank Learning Methods'. Fuse
    rankings deeper than `k` (100, say): a document far down in both often
    ends high.

    Args:
        rankings: One or more `Ranking`s of Q queries over the same documents,
            of any K.
        k: int, how many documents to rank.
        constant: int, how slowly lower ranks stop counting.

    Returns:
        A `Ranking` with K = k.

    Raises:
        ValueError: The rankings are of different numbers of queries, there
            are none, or `k` is not positive.
    """
    _positive("k", k)
    queries = {len(ranking.documents) for ranking in rankings}
    if len(queries) != 1:
        raise ValueError(
            "`rankings` must be one or more, of the same queries. Received: "
            f"shapes {[ranking.documents.shape for ranking in rankings]}"
        )
    documents = np.concatenate([r.documents for r in rankings], axis=1)
    gains = np.concatenate(
        [1 / (constant + 1 + np.arange(r.documents.shape[1])) for r in rankings]
    )
    fused = Ranking(
        np.full((len(documents), k), -1, "int64"),
        np.full((len(documents), k), -np.inf, "float32"),
    )
    for query, row in enumerate(documents):
        found, positions = np.unique(row[row >= 0], return_inverse=True)
        scores = np.bincount(positions, weights=gains[row >= 0])
        best = np.argsort(-scores, stable=True)[:k]
        fused.documents[query, : len(best)] = found[best]
        fused.scores[query, : len(best)] = scores[best]
    return fused


def _import(module):
    """Imports a module of the optional extra."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"keras_fixedhead.retrieval needs {module}: "
            "pip install keras_fixedhead[retrieval]"
        ) from error


def _matrix(name, values):
    values = np.ascontiguousarray(values, "float32")
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError(
            f"`{name}` must be a matrix of finite numbers. "
            f"Received: shape {values.shape}, "
            f"{np.count_nonzero(~np.isfinite(values))} not finite"
        )
    return values


def _positive(name, value):
    if value < 1:
        raise ValueError(f"`{name}` must be positive. Received: {value}")
    return value
