"""The kinds of index, and what each of them can do.

Imports only what is quick to import, because `--help` does.

Shape letters: Q queries, N documents, S documents of a sample, D embedding
size, K documents ranked.
"""

import dataclasses
import enum
import pathlib
import pkgutil
import typing

import numpy as np

from keras_fixedhead.retrieval import Ranking


@dataclasses.dataclass(frozen=True)
class Options:
    """What an index stores; see `retrieval.new_index`."""

    precision: typing.Literal["float32", "int8", "binary", "binary_int8"] = (
        "float32"
    )
    """What the index stores of each dimension: float32 four bytes, int8 one
    byte, binary one bit (and 8 bytes per document), binary_int8 one bit to
    find documents and one byte to score them again."""

    dimension: int | None = None
    """Dimensions of an embedding that the index stores. Default: all."""

    reduction: typing.Literal["truncate", "pca"] = "truncate"
    """How to reduce the dimension: keep the first dimensions (for models
    trained for it) or the principal components of the documents."""

    approximate: bool = False
    """Search only a part of the documents, which finds most of the best ones;
    for many documents. Uses a graph, which takes long to build (for the binary
    precisions, cells)."""


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

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""

    def add(self, vectors: np.ndarray) -> None:
        """Adds documents, float32 `[N, D]`."""

    def search(self, embeddings: np.ndarray, k: int) -> Ranking:
        """Ranks the K = min(k, N) best documents of queries `[Q, D]`."""


class Kind(enum.Enum):
    """The kinds of index, by the suffix of their files."""

    faiss = "export.index.faiss_index:FaissIndex"

    @classmethod
    def of(cls, file: str) -> "Kind":
        """Returns the kind of a file."""
        return cls[file.rpartition(".")[2]]

    @property
    def index_class(self) -> type[VectorIndex]:
        return pkgutil.resolve_name(self.value)
