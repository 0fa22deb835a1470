"""The index of embeddings in an index folder, by FAISS.

Shape letters: Q queries, N documents, S documents of a sample, D embedding
size, K documents ranked.
"""

import pathlib
from typing import Any

import faiss
import numpy as np

from keras_fixedhead import retrieval

_BLOCK_BYTES = 2**20


class FaissIndex:
    """N embeddings `[D]`, searched by inner product."""

    PACKAGE = "faiss-cpu"  # the distribution that it needs
    SAMPLE = 65_536  # documents to train on, at most

    def __init__(self, index: faiss.Index):
        self._index = index

    @classmethod
    def check(cls, documents: int, size: int, **options: Any) -> None:
        """Raises a `ValueError` if N and D cannot be indexed so."""
        retrieval.check_index(documents, size, **options)

    @classmethod
    def train(cls, sample: np.ndarray, **options: Any) -> "FaissIndex":
        """Returns an empty index, trained on a sample `[S, D]`.

        The options are the fields of `manifest.Options`.
        """
        return cls(retrieval.new_index(sample, **options))

    @classmethod
    def read(cls, path: pathlib.Path) -> "FaissIndex":
        return cls(faiss.read_index(str(path)))

    def write(self, path: pathlib.Path) -> None:
        """Writes one file; raises an `OSError` if the disk is full."""
        # `faiss.write_index` to a path does not notice a failing close.
        with open(path, "wb") as stream:
            writer = faiss.PyCallbackIOWriter(  # type: ignore[attr-defined]
                stream.write, _BLOCK_BYTES
            )
            faiss.write_index(self._index, writer)

    def add(self, vectors: np.ndarray) -> None:
        """Adds documents, float32 `[N, D]`."""
        self._index.add(vectors)

    def search(self, embeddings: np.ndarray, k: int) -> retrieval.Ranking:
        """Ranks the K = min(k, N) best documents of queries `[Q, D]`."""
        return retrieval.search_index(self._index, embeddings, k)
