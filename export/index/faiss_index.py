"""The index of embeddings in an index folder, by FAISS.

Everything that depends on FAISS is here. Another kind of index is another
module with these names.

Shape letters: Q queries, N documents, S documents of a sample, D embedding
size, K documents ranked.
"""

import dataclasses
import pathlib

import faiss
import numpy as np

from export.index.manifest import Options
from keras_fixedhead import retrieval
from keras_fixedhead.ranking import Ranking

SUFFIX = ".faiss"
PACKAGE = "faiss-cpu"
SAMPLE = 65_536  # documents to train on, at most
_BLOCK_BYTES = 2**20


class VectorIndex:
    """An index of N embeddings `[D]`, searched by inner product."""

    def __init__(self, index: faiss.Index):
        self._index = index

    @classmethod
    def train(cls, sample: np.ndarray, options: Options) -> "VectorIndex":
        """Returns an empty index, trained on a sample `[S, D]`."""
        return cls(retrieval.new_index(sample, **dataclasses.asdict(options)))

    @classmethod
    def read(cls, path: pathlib.Path) -> "VectorIndex":
        """Reads a file."""
        return cls(faiss.read_index(str(path)))

    def write(self, path: pathlib.Path) -> None:
        """Writes a file; raises an `OSError` if the disk is full."""
        # `faiss.write_index` to a path does not notice a failing close.
        with open(path, "wb") as stream:
            writer = faiss.PyCallbackIOWriter(stream.write, _BLOCK_BYTES)
            faiss.write_index(self._index, writer)

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""
        return self._index.ntotal, self._index.d

    def add(self, vectors: np.ndarray) -> None:
        """Adds documents, float32 `[N, D]`."""
        self._index.add(vectors)

    def search(self, embeddings: np.ndarray, k: int) -> Ranking:
        """Ranks the K = min(k, N) best documents of queries `[Q, D]`."""
        return retrieval.search_index(self._index, embeddings, k)


def check(documents: int, size: int, options: Options) -> None:
    """Raises a `ValueError` if such an index cannot be trained.

    `documents` is their number, `size` is D.
    """
    retrieval.check_index(documents, size, **dataclasses.asdict(options))
