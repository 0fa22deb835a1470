"""BM25 over English words, which can be saved and searched from disk.

Shape letters: Q queries, N documents, K documents ranked.

The packages behind it come with `pip install keras_fixedhead[retrieval]`.
"""

import contextlib
import logging
import sys

import numpy as np

from keras_fixedhead.ranking import Ranking, import_extra, positive


class BM25:
    """Ranks documents by BM25 over English words.

    Words of two characters or more are lower-cased, English stop words are
    left out, and the rest is stemmed (Snowball). The scoring is Lucene's
    variant, as in the package `bm25s` (Lù 2024, 'BM25S: Orders of magnitude
    faster lexical search via eager sparse scoring'), with its default
    parameters.

    Args:
        documents: iterable of N strings, read once.
        k1: float, how slowly repeated words stop counting.
        b: float from 0 to 1, how much long documents are held back.

    Raises:
        ImportError: bm25s or PyStemmer is not installed.
        ValueError: `documents` holds no word.
    """

    def __init__(self, documents, k1=1.5, b=0.75):
        bm25s = _bm25s()
        words = _tokenize(documents)
        if not words.vocab:
            raise ValueError(
                "`documents` must hold words other than stop words. "
                f"Received: {len(words.ids)} documents with none"
            )
        self._scores = bm25s.BM25(k1=k1, b=b)
        self._scores.index(words, show_progress=False)

    def __len__(self):
        """Returns N."""
        return int(self._scores.scores["num_docs"])

    def save(self, folder):
        """Writes it into a folder, which is created.

        Raises:
            OSError: a file cannot be written.
        """
        self._scores.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder):
        """Opens what `save` wrote.

        The scores of words stay on disk and are memory-mapped; the words
        themselves are read.

        Raises:
            ImportError: bm25s is not installed.
            OSError, ValueError, KeyError: a file is missing or broken.
        """
        found = cls.__new__(cls)
        found._scores = _bm25s().BM25.load(
            folder, mmap=True, show_progress=False
        )
        return found

    def search(self, queries, k):
        """Finds the documents with the highest scores for each query.

        Args:
            queries: list of Q strings.
            k: int, how many documents to rank.

        Returns:
            A `Ranking` with K = min(k, N). Documents that share no word with
            the query are not in it.

        Raises:
            ImportError: PyStemmer is not installed.
            ValueError: `k` is not positive.
        """
        found, scores = self._scores.retrieve(
            _tokenize(queries, return_ids=False),
            k=min(positive("k", k), len(self)),
            show_progress=False,
            backend_selection="numpy",  # see `_bm25s`
        )
        shared = scores > 0
        return Ranking(
            np.where(shared, found, -1).astype("int64"),
            np.where(shared, scores, -np.inf).astype("float32"),
        )


def _bm25s():
    """Imports bm25s without JAX.

    It would load JAX where that is installed, for a top k that NumPy does.
    """
    with contextlib.ExitStack() as stack:
        if "jax" not in sys.modules:
            sys.modules["jax"] = None
            stack.callback(sys.modules.pop, "jax")
        bm25s = import_extra("bm25s")
    # It logs every call where logging is set up, as Apache Beam does.
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
