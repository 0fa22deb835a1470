"""Rankings of documents, and BM25 over English words, which returns them.

Shape letters: Q queries, N documents, K documents ranked.

Requires `pip install keras_fixedhead[retrieval]`.
"""

import contextlib
import importlib
import logging
import os
import sys
import types
import typing
from collections.abc import Iterable, Sequence

import numpy as np

from keras_fixedhead.attention_checks import positive_int


class Ranking(typing.NamedTuple):
    """The best documents of each query, best first.

    Int64 row numbers of documents `[Q, K]`, -1 where fewer than K were found,
    and their float32 scores `[Q, K]`, higher is better, -inf at -1.
    """

    documents: np.ndarray
    scores: np.ndarray


def import_extra(module: str) -> types.ModuleType:
    """Imports a module of the extra `retrieval`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Retrieval needs {module}: pip install keras_fixedhead[retrieval]"
        ) from error


class BM25:
    """Ranks documents by BM25 over English words.

    Words of two characters or more are lower-cased and stemmed (Snowball),
    without English stop words. The scoring is Lucene's variant with the
    default parameters of `bm25s` (Lù 2024, https://arxiv.org/abs/2407.03618).
    A larger `k1` makes repeated words count more; a larger `b`, from 0 to 1,
    penalizes long documents more. The documents are read once.
    """

    def __init__(
        self, documents: Iterable[str], k1: float = 1.5, b: float = 0.75
    ):
        bm25s = _bm25s()
        words = _tokenize(documents)
        if not words.vocab:
            raise ValueError(
                "`documents` must hold words other than stop words. "
                f"Received: {len(words.ids)} documents with none"
            )
        self._scores = bm25s.BM25(k1=k1, b=b)
        self._scores.index(words, show_progress=False)

    def __len__(self) -> int:
        return int(self._scores.scores["num_docs"])

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the index into a new folder."""
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
