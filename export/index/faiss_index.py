"""The index of embeddings in an index folder, by FAISS."""

import dataclasses
import pathlib

import faiss
import numpy as np

from export.index.kinds import VectorIndex
from export.index.manifest import Options
from keras_fixedhead import retrieval

_BLOCK_BYTES = 2**20


class FaissIndex(VectorIndex):
    """Everything that depends on FAISS."""

    PACKAGE = "faiss-cpu"
    SAMPLE = 65_536

    def __init__(self, index: faiss.Index):
        self._index = index

    @classmethod
    def check(cls, documents: int, size: int, options: Options) -> None:
        retrieval.check_index(documents, size, **dataclasses.asdict(options))

    @classmethod
    def train(cls, sample: np.ndarray, options: Options) -> "FaissIndex":
        return cls(retrieval.new_index(sample, **dataclasses.asdict(options)))

    @classmethod
    def read(cls, path: pathlib.Path) -> "FaissIndex":
        return cls(faiss.read_index(str(path)))

    def write(self, path: pathlib.Path) -> None:
        # `faiss.write_index` to a path does not notice a failing close.
        with open(path, "wb") as stream:
            writer = faiss.PyCallbackIOWriter(  # type: ignore[attr-defined]
                stream.write, _BLOCK_BYTES
            )
            faiss.write_index(self._index, writer)

    def add(self, vectors: np.ndarray) -> None:
        self._index.add(vectors)

    def search(self, embeddings: np.ndarray, k: int) -> retrieval.Ranking:
        return retrieval.search_index(self._index, embeddings, k)
