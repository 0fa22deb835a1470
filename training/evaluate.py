r"""Measures a preset on retrieval collections, beside BM25.

    python -m training.evaluate --model runs/demo/train/preset \
        --collection data/cranfield data/medline

Ranks all documents for each query by exact search, by BM25, by the fusion of
both and, with --precision, --dimension or --approximate, by an index.
`training.embedding_report` compares sizes of an index.
"""

import sys

from training.engine import cli
from training.retrieval.configs import EvaluateConfig


def evaluate(config: EvaluateConfig) -> None:
    """Measures, prints and writes; see `training.retrieval.evaluation`."""
    cli.import_tensorflow()
    from training.retrieval import evaluation

    evaluation.evaluate(config)


main = cli.command(evaluate, EvaluateConfig, "training.evaluate", __doc__)

if __name__ == "__main__":
    sys.exit(main())
