"""Ranking documents: indexes of embeddings, BM25, and their fusion.

Shape letters: Q queries, N documents or vectors, S sampled documents,
D embedding size, R dimensions kept of it, K documents ranked.

Requires `pip install keras_fixedhead[retrieval]`.
"""

import contextlib
import importlib
import logging
import math
import os
import sys
import types
import typing
from collections.abc import Iterable, Sequence

import numpy as np

from keras_fixedhead.argument_checks import one_of, positive_int

if typing.TYPE_CHECKING:
    import faiss

PRECISIONS = ("float32", "int8", "binary", "binary_int8")
REDUCTIONS = ("truncate", "pca")

# HNSW: neighbours of a document on the upper levels (twice as many on the
# lowest), and the candidates kept while building and searching.
_NEIGHBOURS = 16
_BUILD_CANDIDATES = 200
_SEARCH_CANDIDATES = 128
# Bits per dimension of a query where documents have one.
_QUERY_BITS = 8
# Documents found by bits for each wanted one, before they are scored again.
_RESCORED = 10
# The search visits one cell in so many.
_CELLS_SEARCHED = 4
_ROTATION_SEED = 1234
_UNIT_TOLERANCE = 1e-3
# Vectors in float64 at once, for principal components.
_ROWS_AT_ONCE = 4096


class Ranking(typing.NamedTuple):
    """The best documents of each query, best first.

    Int64 row numbers of documents `[Q, K]`, -1 where fewer than K were found,
    and their float32 scores `[Q, K]`, higher is better, -inf at -1.
    """

    documents: np.ndarray
    scores: np.ndarray


def import_extra(module: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Retrieval needs {module}: pip install keras_fixedhead[retrieval]"
        ) from error


def new_index(
    sample: np.ndarray,
    precision: str = "float32",
    dimension: int | None = None,
    reduction: str = "truncate",
    approximate: bool = False,
) -> "faiss.Index":
    """A trained index without documents; `index.add(rows)` adds `[N, D]`.

    Scores are inner products of the reduced embeddings, renormalized only if
    every row of the sample has unit length or is zero. The index transforms
    documents and queries itself, also after `faiss.read_index`.

    Args:
        sample: float array `[S, D]` from the whole collection, to learn
            directions, ranges (int8 clips what is outside) and centres from.
        precision: `"float32"`, 4 R bytes per document. `"int8"`, R bytes.
            `"binary"`, R / 8 + 8 bytes: the side of the centre in each
            dimension, after a random rotation, and two correction factors
            (RaBitQ, Gao and Long 2024, https://arxiv.org/abs/2405.12497).
            `"binary_int8"`: bits find ten documents for each wanted one, and
            int8 scores these again.
        dimension: R, from 1 to D. Default: D.
        reduction: `"truncate"` keeps the first dimensions, for models trained
            for it; `"pca"` the principal components of the sample.
        approximate: search a part of the documents. `"float32"` and `"int8"`
            use a graph (HNSW, Malkov and Yashunin 2018), which adds about 140
            bytes per document and needs embeddings of unit length. With the
            binary precisions, documents are grouped into cells, and a search
            visits a quarter of them; this adds 8 bytes per document.
    """
    faiss = import_extra("faiss")
    sample = _matrix("sample", sample)
    rows, width = sample.shape
    if not rows:
        raise ValueError(f"`sample` must have rows. Received: {sample.shape}")
    one_of("precision", precision, PRECISIONS)
    one_of("reduction", reduction, REDUCTIONS)
    positive_int("dimension", dimension, optional=True, most=width)
    kept = width if dimension is None else dimension
    directions = np.eye(width, kept)  # [D, R]
    if kept < width and reduction == "pca":
        if rows < kept:
            raise ValueError(
                "`sample` must have at least `dimension` rows for `pca`. "
                f"Received: {rows} rows, dimension={dimension}"
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
        lengths = np.linalg.norm(sample, axis=1)
        lengths = lengths[lengths > 0]
        of_unit_length = np.allclose(lengths, 1, atol=_UNIT_TOLERANCE, rtol=0)
        if kept < width and len(lengths) and of_unit_length:
            index.prepend_transform(faiss.NormalizationTransform(kept))
        linear = faiss.LinearTransform(width, kept)
        faiss.copy_array_to_vector(
            directions.T.astype("float32").ravel(), linear.A
        )
        linear.is_trained = True
        index.prepend_transform(linear)
    index.train(sample)
    return index


def check_index(documents: int, size: int, **options: typing.Any) -> None:
    """Raises the errors of `new_index` before there are embeddings."""
    new_index(np.eye(min(documents, size), size), **options)


def build_index(embeddings: np.ndarray, **options: typing.Any) -> "faiss.Index":
    """An index of documents `[N, D]`, exact without options of `new_index`."""
    embeddings = _matrix("embeddings", embeddings)
    index = new_index(embeddings, **options)
    index.add(embeddings)
    return index


def bytes_per_document(index: "faiss.Index") -> float:
    """The size of a document in an index, without what all documents share."""
    faiss = import_extra("faiss")
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        return bytes_per_document(index.index)
    if isinstance(index, faiss.IndexRefine):
        both = index.base_index, index.refine_index
        return sum(map(bytes_per_document, both))
    if isinstance(index, faiss.IndexHNSW):
        # The neighbours of a document, their offset, and its level.
        graph = 4 * index.hnsw.neighbors.size() / index.ntotal + 8 + 4
        return graph + bytes_per_document(index.storage)
    if isinstance(index, faiss.IndexIVF):
        return index.code_size + 8.0  # its number
    return float(index.sa_code_size())


def search_index(
    index: "faiss.Index", embeddings: np.ndarray, k: int
) -> Ranking:
    """The `min(k, N)` documents that score highest for queries `[Q, D]`."""
    embeddings = _matrix("embeddings", embeddings)
    if embeddings.shape[1] != index.d:
        raise ValueError(
            f"`embeddings` must have the index's width, {index.d}. "
            f"Received: shape {embeddings.shape}"
        )
    k = min(positive_int("k", k), index.ntotal)
    scores, documents = index.search(embeddings, k)
    return Ranking(documents, np.where(documents >= 0, scores, -np.inf))


class BM25:
    """Ranks documents by BM25 over English words.

    Words of two characters or more are lower-cased and stemmed (Snowball),
    without English stop words. The scoring is Lucene's variant with the
    default parameters of `bm25s` (Lù 2024, https://arxiv.org/abs/2407.03618).
    """

    def __init__(self, documents: Iterable[str]):
        words = _tokenize(documents)
        if not words.vocab:
            raise ValueError(
                "`documents` must hold words other than stop words. "
                f"Received: {len(words.ids)} documents with none"
            )
        self._scores = _bm25s().BM25()
        self._scores.index(words, show_progress=False)

    def __len__(self) -> int:
        return int(self._scores.scores["num_docs"])

    def save(self, folder: str | os.PathLike) -> None:
        self._scores.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> typing.Self:
        """Opens a saved index; scores are memory-mapped, words are read."""
        found = cls.__new__(cls)
        found._scores = _bm25s().BM25.load(
            folder, mmap=True, show_progress=False
        )
        return found

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        """The `min(k, N)` documents with the highest scores for each query.

        Documents that share no word with the query are left out.
        """
        found, scores = self._scores.retrieve(
            _tokenize(queries, return_ids=False),
            k=min(positive_int("k", k), len(self)),
            show_progress=False,
            backend_selection="numpy",  # see `_bm25s`
        )
        shared = scores > 0
        return Ranking(
            np.where(shared, found, -1).astype("int64"),
            np.where(shared, scores, -np.inf).astype("float32"),
        )


def reciprocal_rank_fusion(
    rankings: Sequence[Ranking], k: int, constant: int = 60
) -> Ranking:
    """Fuses rankings of the same Q queries and documents by their ranks.

    A document scores the sum of 1 / (constant + rank) over the rankings that
    contain it, ranks counted from 1; equal scores keep the order of the
    documents (Cormack, Clarke and Büttcher 2009). Fuse rankings deeper than
    `k` (such as 100): a document low in both often ends high.
    """
    positive_int("k", k)
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


def _bm25s():
    """Imports bm25s without JAX, which it would import for a top k."""
    with contextlib.ExitStack() as stack:
        if "jax" not in sys.modules:
            sys.modules["jax"] = None
            stack.callback(sys.modules.pop, "jax")
        bm25s = import_extra("bm25s")
    # bm25s logs every call where logging is set up, as by Apache Beam.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def _tokenize(texts, **kwargs):
    return _bm25s().tokenize(
        texts,
        stopwords="english",
        stemmer=import_extra("Stemmer").Stemmer("english"),
        show_progress=False,
        **kwargs,
    )


def _quantized(faiss, size, precision, approximate, rows):
    # FAISS's recommended number of cells, and its least documents per cell.
    cells = max(1, min(4 * math.isqrt(rows), rows // 39))
    graph = f"HNSW{_NEIGHBOURS},"
    description = {
        "float32": graph + "Flat" if approximate else "Flat",
        "int8": graph + "SQ8" if approximate else "SQ8",
        "binary": f"IVF{cells},RaBitQ" if approximate else "RaBitQ",
    }[precision.removesuffix("_int8")]
    if precision == "binary_int8":
        description += ",Refine(SQ8)"
    index = faiss.index_factory(size, description, faiss.METRIC_INNER_PRODUCT)
    bits = index
    if precision == "binary_int8":
        index.k_factor = _RESCORED
        bits = faiss.downcast_index(index.base_index)
    if precision.startswith("binary"):
        bits.qb = _QUERY_BITS
        if approximate:
            bits.cp.spherical = True
            # Silences FAISS's warning, which a small collection cannot avoid.
            bits.cp.min_points_per_centroid = 1
            bits.nprobe = -(-cells // _CELLS_SEARCHED)
    elif approximate:
        index.hnsw.efConstruction = _BUILD_CANDIDATES
        index.hnsw.efSearch = _SEARCH_CANDIDATES
    return index


def _matrix(name, values):
    values = np.ascontiguousarray(values, "float32")
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError(
            f"`{name}` must be a matrix of finite numbers. "
            f"Received: shape {values.shape}, "
            f"{np.count_nonzero(~np.isfinite(values))} not finite"
        )
    return values


def principal_components(vectors: np.ndarray, size: int) -> np.ndarray:
    """The directions in which vectors `[N, D]` extend most, not centred.

    Returns orthonormal columns, float64 `[D, size]`; those beyond D are zero.
    """
    products = np.zeros([vectors.shape[1]] * 2)
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        part = vectors[start : start + _ROWS_AT_ONCE].astype("float64")
        products += part.T @ part
    _, directions = np.linalg.eigh(products)
    # Eigenvalues ascend.
    directions = directions[:, ::-1][:, :size]
    # Rounding, which depends on the machine, must not choose the sign.
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, range(len(largest))])
    missing = size - directions.shape[1]
    return np.pad(directions, ((0, 0), (0, missing)))
