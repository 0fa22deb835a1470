"""Verb: measures a preset on retrieval collections, beside BM25.

    python -m training.evaluate --model runs/demo/train/preset \
        --collection data/cranfield data/medline

Each query ranks all documents by exact search; over an index, if one is
asked for; by BM25; and by what fuses that with the model's ranking. How the
figures change with the size of the index, `training.embedding_report` shows.
"""

import sys

import tyro

from training.engine import cli
from training.retrieval.configs import EvaluateConfig


def evaluate(config: EvaluateConfig) -> dict[str, dict[str, dict[str, float]]]:
    """Measures, prints and writes; see `training.retrieval.evaluation`."""
    cli.import_tensorflow()
    from training.retrieval import evaluation as ranking

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
