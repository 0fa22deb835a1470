"""Verb: accuracy against parameters, over runs of several shapes and seeds.

    python -m training.accuracy_report runs/mnli/* --output runs/mnli_report \
        --figures accuracy_matched

The table is laid out as Table 2 of Bhojanapalli et al. 2020, the picture as
their Fig. 2: a line for heads of the standard size (embedding size / heads)
and one for heads of a fixed size.
"""

import dataclasses
import pathlib
import sys

import tyro

from training.engine import cli


@dataclasses.dataclass(frozen=True)
class AccuracyReportConfig:
    """Which runs, and where the report goes."""

    runs: tyro.conf.Positional[tuple[pathlib.Path, ...]]
    """Work directories of finished runs, or of `--seeds`; their figures are
    averaged over the seeds."""
    output: pathlib.Path
    """Folder for report.json and report.png."""
    figures: tuple[str, ...] = ()
    """Names of held-out figures; none is those that all runs have, without
    losses."""


def accuracy_report(config: AccuracyReportConfig) -> None:
    """Reads, prints and draws; see `training.engine.accuracy`."""
    from training.engine.accuracy import report

    report(config)


def parse(args: list[str] | None = None) -> AccuracyReportConfig:
    """Reads what is reported from the command line."""
    return tyro.cli(
        AccuracyReportConfig,
        args=args,
        prog="python -m training.accuracy_report",
        description="Draws the accuracy of finished runs against the "
        "parameters of their encoders, with the deviation over seeds, as the "
        "paper's Table 2 and Fig. 2 do.",
        use_underscores=True,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(accuracy_report, parse(args), "training.accuracy_report")


if __name__ == "__main__":
    sys.exit(main())
