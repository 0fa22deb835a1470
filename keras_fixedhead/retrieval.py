"""Ranking documents: indexes of embeddings, BM25, and their fusion.

Shape letters: Q queries, N documents, S documents of a sample, D embedding
size, R numbers kept of it, K documents ranked.

The packages behind it come with `pip install keras_fixedhead[retrieval]`.
"""

import math
from collections.abc import Sequence

import numpy as np

from keras_fixedhead.bm25 import BM25
from keras_fixedhead.principal_components import principal_components
from keras_fixedhead.ranking import Ranking, import_extra, positive

PRECISIONS = ("float32", "int8", "binary", "binary_int8")
REDUCTIONS = ("truncate", "pca")

# Of the graph: neighbours of a document on the upper levels (twice as many on
# the lowest), and how many candidates are kept while it is built and searched.
_NEIGHBOURS = 16
_BUILD_CANDIDATES = 200
_SEARCH_CANDIDATES = 128
# Bits of a query's numbers where those of a document have one.
_QUERY_BITS = 8
# Documents found by bits for one that is wanted, before they are scored again.
_RESCORED = 10
# One cell in so many is searched where documents are parted into cells.
_CELLS_SEARCHED = 4
_ROTATION_SEED = 1234
_UNIT_TOLERANCE = 1e-3


def new_index(
    sample,
    precision="float32",
    dimension=None,
    reduction="truncate",
    approximate=False,
):
    """Makes an index without documents, to which they are added in parts.

    Scores are inner products, of the numbers kept: the cosine, where
    embeddings have length 1. If all rows of the sample have (or are zero),
    documents and queries are normalized again once they are reduced; of a
    sample where any has not, none is. The index takes whole documents and
    whole queries, also when it was saved by `faiss.write_index` and read by
    `faiss.read_index`: what is done to them is part of it.

    Args:
        sample: float array `[S, D]`, documents from which the directions of
            `"pca"`, the ranges of `"int8"` and the centre of `"binary"` are
            learned. Numbers outside the ranges are clipped: a sample is
            drawn from everywhere in the collection.
        precision: `"float32"`, 4 R bytes a document. `"int8"`, R bytes: each
            dimension in 256 steps. `"binary"`, R / 8 + 8 bytes: after a
            random rotation the sides on which a document lies of the centre,
            and two numbers that correct what these estimate; all documents
            are scored by the numbers of the query (Gao and Long 2024,
            "RaBitQ: Quantizing High-Dimensional Vectors with a Theoretical
            Error Bound for Approximate Nearest Neighbor Search").
            `"binary_int8"`, both: the bits find ten documents for each one
            that is wanted, and these are scored again by int8. As good as
            int8, and quicker where documents are many.
        dimension: int, R, from 1 to D; `None` keeps all.
        reduction: `"truncate"` keeps the first numbers, for models trained
            for it (see `FixedHeadTextEmbedder`); `"pca"` the principal
            components of the sample. These are not centred: so of all
            projections they keep the inner products of the sample best, by
            their squared error.
        approximate: bool. Whether a part of the documents is searched, where
            all would take too long. `"float32"` and `"int8"` are searched
            over a graph (Malkov and Yashunin 2018, "Efficient and robust
            approximate nearest neighbor search using Hierarchical Navigable
            Small World graphs"), which takes about 140 bytes more a document
            and long to build, and is for embeddings of length 1. Built by
            one thread (`faiss.omp_set_num_threads(1)`) it is the same each
            time. Bits, which a graph would make three times as large, are
            parted around centres of the sample, one in every 39 of it at
            the most; a quarter of the parts is searched. It takes 8 bytes
            more.

    Returns:
        A trained FAISS index; `index.add(rows)` adds documents `[N, D]`.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: `sample` is not a matrix of finite numbers, or has no
            row, or for `"pca"` fewer than R; there is no such precision or
            reduction, or `dimension` is not from 1 to D.
    """
    faiss = import_extra("faiss")
    sample = _matrix("sample", sample)
    rows, width = sample.shape
    if not rows:
        raise ValueError(
            "`sample` must hold at least one document. "
            f"Received: shape {sample.shape}"
        )
    _one_of("precision", precision, PRECISIONS)
    _one_of("reduction", reduction, REDUCTIONS)
    kept = width if dimension is None else dimension
    if not 1 <= kept <= width:
        raise ValueError(
            f"`dimension` must be None or from 1 to {width}, the width of "
            f"`sample`. Received: {dimension}"
        )
    directions = np.eye(width, kept)  # [D, R]
    if kept < width and reduction == "pca":
        if rows < kept:
            raise ValueError(
                "`sample` must have as many rows as `dimension` for the "
                f"principal components. Received: {rows} rows, "
                f"dimension={dimension}"
            )
        directions = principal_components(sample, kept)
    has_bits = precision.startswith("binary")
    if has_bits:
        rotation = faiss.RandomRotationMatrix(kept, kept)
        rotation.init(_ROTATION_SEED)
        directions = rotation.apply(directions.astype("float32"))
    index = _quantized(faiss, kept, precision, approximate, rows)
    if kept < width or has_bits:
        index = faiss.IndexPreTransform(index)
        if kept < width and _of_unit_length(sample):
            index.prepend_transform(faiss.NormalizationTransform(kept))
        linear = faiss.LinearTransform(width, kept)
        faiss.copy_array_to_vector(
            directions.T.astype("float32").ravel(), linear.A
        )
        linear.is_trained = True
        index.prepend_transform(linear)
    index.train(sample)
    return index


def check_index(documents, size, **options):
    """Raises what making an index would raise, before there are embeddings.

    Args:
        documents: int, how many there will be to learn from.
        size: int, D.
        **options: as in `new_index`.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: there can be no such index.
    """
    new_index(np.eye(min(documents, size), size), **options)


def build_index(embeddings, **options):
    """Builds an index of documents, searched by inner product.

    Args:
        embeddings: float array `[N, D]`, one row per document.
        **options: as in `new_index`, of which all documents are the sample;
            without any, the index is exact.

    Returns:
        A FAISS index, which `faiss.write_index` saves.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: as `new_index`, of which `embeddings` are the sample.
    """
    embeddings = _matrix("embeddings", embeddings)
    index = new_index(embeddings, **options)
    index.add(embeddings)
    return index


def bytes_per_document(index):
    """What a document takes of an index, in memory and in its file.

    Args:
        index: A FAISS index, as `new_index` makes, with documents in it.

    Returns:
        float; what all documents share, such as directions, is left out.

    Raises:
        ImportError: FAISS is not installed.
        ValueError: `index` holds no documents.
    """
    faiss = import_extra("faiss")
    if not index.ntotal:
        raise ValueError("`index` must hold documents. Received: none")
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return bytes_per_document(index.index)
    if isinstance(index, faiss.IndexRefine):
        return sum(
            map(bytes_per_document, (index.base_index, index.refine_index))
        )
    if isinstance(index, faiss.IndexHNSW):
        # The neighbours of a document, where they begin, and its level.
        graph = 4 * index.hnsw.neighbors.size() / index.ntotal + 8 + 4
        return graph + bytes_per_document(index.storage)
    if isinstance(index, faiss.IndexIVF):
        return index.code_size + 8.0  # its number
    return float(index.code_size)


def search_index(index, embeddings, k):
    """Finds the documents with the highest scores for each query.

    Args:
        index: A FAISS index of N documents, as `new_index` and `build_index`
            make.
        embeddings: float array `[Q, D]`, one row per query.
        k: int, how many documents to rank.

    Returns:
        A `Ranking` with K = min(k, N), scored by the index's measure: the
        inner product, or what is estimated of it.

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
    k = min(positive("k", k), index.ntotal)
    scores, documents = index.search(embeddings, k)
    return Ranking(documents, np.where(documents >= 0, scores, -np.inf))


def bm25(documents, queries, k, k1=1.5, b=0.75):
    """Ranks documents by BM25, for one list of queries; see `BM25`.

    Args:
        documents: list of N strings.
        queries: list of Q strings.
        k: int, how many documents to rank.
        k1: float, as in `BM25`.
        b: float, as in `BM25`.

    Returns:
        A `Ranking`, as `BM25.search`.

    Raises:
        ImportError: bm25s or PyStemmer is not installed.
        ValueError: `documents` holds no word, or `k` is not positive.
    """
    return BM25(documents, k1, b).search(queries, k)


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
    positive("k", k)
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


def _quantized(faiss, size, precision, approximate, rows):
    """An index of the precision, without documents or training."""
    measure = faiss.METRIC_INNER_PRODUCT
    int8 = faiss.ScalarQuantizer.QT_8bit
    if precision == "binary_int8":
        bits, numbers = (
            _quantized(faiss, size, "binary", approximate, rows),
            _quantized(faiss, size, "int8", False, rows),
        )
        index = faiss.IndexRefine(bits, numbers)
        index.k_factor = _RESCORED
        index.own_fields = index.own_refine_index = True
        bits.this.disown()
        numbers.this.disown()
        return index
    if not approximate:
        if precision == "float32":
            return faiss.IndexFlatIP(size)
        if precision == "int8":
            return faiss.IndexScalarQuantizer(size, int8, measure)
        index = faiss.IndexRaBitQ(size, measure)
        index.qb = _QUERY_BITS
        return index
    if precision == "float32":
        index = faiss.IndexHNSWFlat(size, _NEIGHBOURS, measure)
    elif precision == "int8":
        index = faiss.IndexHNSWSQ(size, int8, _NEIGHBOURS, measure)
    else:
        return _binary_cells(faiss, size, measure, rows)
    index.hnsw.efConstruction = _BUILD_CANDIDATES
    index.hnsw.efSearch = _SEARCH_CANDIDATES
    return index


def _binary_cells(faiss, size, measure, rows):
    """An index of bits, parted around centres that training finds."""
    # FAISS's own rules: so many cells for so many documents, each of at least
    # so many.
    cells = max(1, min(4 * math.isqrt(rows), rows // 39))
    quantizer = faiss.IndexFlatIP(size)
    index = faiss.IndexIVFRaBitQ(quantizer, size, cells, measure)
    index.own_fields = True
    quantizer.this.disown()
    index.cp.spherical = True
    # FAISS warns of fewer, which a small collection cannot help.
    index.cp.min_points_per_centroid = 1
    index.nprobe = -(-cells // _CELLS_SEARCHED)
    index.qb = _QUERY_BITS
    return index


def _of_unit_length(rows):
    lengths = np.linalg.norm(rows, axis=1)
    lengths = lengths[lengths > 0]
    return len(lengths) and np.abs(lengths - 1).max() <= _UNIT_TOLERANCE


def _matrix(name, values):
    values = np.ascontiguousarray(values, "float32")
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError(
            f"`{name}` must be a matrix of finite numbers. "
            f"Received: shape {values.shape}, "
            f"{np.count_nonzero(~np.isfinite(values))} not finite"
        )
    return values


def _one_of(name, value, choices):
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {value!r}"
        )
