"""The kinds of index, and what each of them can do.

Shape letters: Q queries, N documents, S documents of a sample, D embedding
size, K documents ranked.
"""

import enum
import pathlib
import pkgutil
import typing

import numpy as np

from export.index.manifest import Options
from keras_fixedhead.retrieval import Ranking


class VectorIndex(typing.Protocol):
    """N embeddings `[D]`, searched by inner product.

    A class of another kind has a module beside `faiss_index`, and a line in
    `Kind`.
    """

    PACKAGE: str  # the distribution that it needs
    SAMPLE: int  # documents to train on, at most

    @classmethod
    def check(cls, documents: int, size: int, options: Options) -> None:
        """Raises a `ValueError` if N and D cannot be indexed so."""

    @classmethod
    def train(cls, sample: np.ndarray, options: Options) -> "VectorIndex":
        """Returns an empty index, trained on a sample `[S, D]`."""

    @classmethod
    def read(cls, path: pathlib.Path) -> "VectorIndex":
        """Reads what `write` wrote."""

    def write(self, path: pathlib.Path) -> None:
        """Writes one file; raises an `OSError` if the disk is full."""

    def add(self, vectors: np.ndarray) -> None:
        """Adds documents, float32 `[N, D]`."""

    def search(self, embeddings: np.ndarray, k: int) -> Ranking:
        """Ranks the K = min(k, N) best documents of queries `[Q, D]`."""


class Kind(enum.Enum):
    """The kinds of index, by the suffix of their files."""

    faiss = "export.index.faiss_index:FaissIndex"

    @property
    def index_class(self) -> type[VectorIndex]:
        return pkgutil.resolve_name(self.value)
