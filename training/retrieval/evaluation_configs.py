"""What is measured, and on what: the arguments of the verbs."""

import dataclasses
import pathlib
from typing import Literal


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """What is measured, and on what."""

    collection: tuple[pathlib.Path, ...]
    """BEIR folders: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv."""
    model: pathlib.Path
    """Preset of an embedder. Its prompts `query` and `document` are put
    before the texts where it has them."""
    split: str = "test"
    """The name of the judgements, qrels/SPLIT.tsv."""
    recall: tuple[int, ...] = (10, 100)
    """The k of recall@k."""
    precision: Literal["float32", "int8", "binary", "binary_int8"] = "float32"
    """Numbers of the index: 4 bytes, 1 byte or 1 bit each; or a bit to find
    documents by, and a byte to score them again."""
    dimension: int | None = None
    """How many numbers of an embedding the index keeps; None keeps all."""
    reduction: Literal["truncate", "pca"] = "truncate"
    """Which it keeps: the first ones, for models trained for it, or the
    principal components of the documents."""
    approximate: bool = False
    """Search a part of the documents, by a graph (bits: by cells)."""
    sequence_length: int | None = None
    """The most tokens of a text; None is the model's."""
    batch_size: int = 64
    """Texts embedded at once."""
    output: pathlib.Path | None = None
    """A JSON file for the figures."""


@dataclasses.dataclass(frozen=True)
class ReportConfig:
    """What is measured, on what, and where to."""

    collection: tuple[pathlib.Path, ...]
    """BEIR folders; figures of several are averaged."""
    model: pathlib.Path
    """Preset of an embedder. Its prompts `query` and `document` are put
    before the texts where it has them."""
    output: pathlib.Path
    """Folder for report.json and report.png."""
    dimensions: tuple[int, ...] | None = None
    """Sizes that embeddings are reduced to; None is a half and a quarter."""
    split: str = "test"
    """The name of the judgements, qrels/SPLIT.tsv."""
    sequence_length: int | None = None
    """The most tokens of a text; None is the model's."""
    batch_size: int = 64
    """Texts embedded at once."""
    timed_queries: int = 50
    """Queries of a collection asked in each round of timing."""
    rounds: int = 5
    """Rounds of timing; in each, every index is asked in turn."""
    seed: int = 0
    """Of the intervals' resampling."""
