"""Arguments of the index. Imports nothing that `--help` would wait for."""

import dataclasses
import typing

SHARD_DOCUMENTS = 16_384


@dataclasses.dataclass(frozen=True)
class Options:
    """What the FAISS index is made of; see `retrieval.new_index`."""

    precision: typing.Literal["float32", "int8", "binary", "binary_int8"] = (
        "float32"
    )
    """What the index holds of a number: float32 all of it, int8 a quarter,
    binary one bit (and 8 bytes for each document), binary_int8 a bit to find
    documents by, and a quarter to score them again."""

    dimension: int | None = None
    """Numbers of an embedding that the index holds; all by default."""

    reduction: typing.Literal["truncate", "pca"] = "truncate"
    """How it leaves the others out: the first ones stay (for models that are
    trained so), or the main components of the documents."""

    approximate: bool = False
    """Search a part of the documents, which finds most of what all would
    give; for many of them. By a graph, which takes long to build (bits: by
    cells)."""
