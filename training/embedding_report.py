"""Verb: what smaller indexes of a model's embeddings cost, and keep.

    python -m training.embedding_report --model runs/demo/train/preset \
        --collection data/cranfield data/medline --output runs/demo/sizes

Embeds each collection once and searches it in many ways: with all numbers of
an embedding, its first ones (Matryoshka) or its principal components, which
are learned on the documents alone; with 4 bytes, 1 byte or 1 bit a number;
all documents, or a part of them. Times tell indexes apart from tens of
thousands of documents on; below that, all are quick.
"""

import sys

import tyro

from training.engine import cli
from training.retrieval.configs import ReportConfig


def embedding_report(config: ReportConfig) -> None:
    """Measures and writes; see `training.retrieval.index_sizes`."""
    cli.import_tensorflow()
    from training.retrieval.index_sizes import measure_sizes

    measure_sizes(config)


def parse(args: list[str] | None = None) -> ReportConfig:
    """Reads what is measured from the command line."""
    return tyro.cli(
        ReportConfig,
        args=args,
        prog="python -m training.embedding_report",
        description="Shows which size of an index to serve: quality, bytes "
        "and time of fewer numbers and fewer bits. First numbers are served "
        "by `export.saved_model --embedding_dim`, principal components and "
        "bits by `export.index --dimension --reduction pca --precision`. "
        "Collections of a few hundred documents tell qualities apart; times "
        "need tens of thousands.",
        use_underscores=True,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(embedding_report, parse(args), "training.embedding_report")


if __name__ == "__main__":
    sys.exit(main())
