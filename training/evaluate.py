"""Verb: measures a preset on retrieval collections, beside BM25.

    python -m training.evaluate --model runs/demo/train/preset \
        --collection data/cranfield data/medline

Each query ranks all documents by exact search; over an index, if one is
asked for; by BM25; and by what fuses that with the model's ranking. How the
figures change with the size of the index, `training.embedding_report` shows.
"""

import dataclasses
import pathlib
import sys
from typing import Literal

import tyro

from training import cli


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


def evaluate(config: EvaluateConfig) -> dict[str, dict[str, dict[str, float]]]:
    """Measures, prints and writes; see `training.evaluation.ranking`."""
    # TensorFlow takes seconds to import, which `--help` need not wait for.
    from training.evaluation import ranking

    return ranking.evaluate(config)


def parse(args: list[str] | None = None) -> EvaluateConfig:
    """Reads what is measured from the command line."""
    return tyro.cli(
        EvaluateConfig,
        args=args,
        prog="python -m training.evaluate",
        description="Measures a preset on retrieval collections: exact "
        "search, an index (if --precision, --dimension or --approximate asks "
        "for one), BM25, and the fusion of BM25 with the model.",
        use_underscores=True,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(evaluate, parse(args), "training.evaluate")


if __name__ == "__main__":
    sys.exit(main())
