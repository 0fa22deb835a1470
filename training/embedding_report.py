r"""Measures what a smaller index of a model's embeddings costs and keeps.

    python -m training.embedding_report --model runs/demo/train/preset \
        --collection data/cranfield data/medline --output runs/demo/sizes

Embeds each collection once and searches it with all dimensions of an
embedding, the first ones (Matryoshka) or its principal components, which are
learned from the documents alone; with 4 bytes, 1 byte or 1 bit a dimension; in
all documents or a part of them.

Then `export.saved_model --embedding_dim` serves the first dimensions,
`export.index --dimension --reduction pca --precision` the rest. A few hundred
documents show differences in quality; differences in time need tens of
thousands.
"""

import sys

from training.engine import cli
from training.retrieval.configs import ReportConfig


def embedding_report(config: ReportConfig) -> None:
    """Measures and writes; see `training.retrieval.evaluation`."""
    cli.import_tensorflow()
    from training.retrieval.evaluation import measure_sizes

    measure_sizes(config)


main = cli.command(
    embedding_report, ReportConfig, "training.embedding_report", __doc__
)

if __name__ == "__main__":
    sys.exit(main())
