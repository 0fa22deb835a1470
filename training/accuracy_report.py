r"""Draws accuracy against encoder parameters, for finished runs.

    python -m training.accuracy_report runs/mnli/* --output runs/mnli_report \
        --figures accuracy_matched

The table has the layout of Table 2 of Bhojanapalli et al. 2020, the picture
that of their Fig. 2: one line for heads of the standard size (embedding size /
heads), one for heads of a fixed size, with the deviation over seeds.
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
    """Work directories of finished runs, or of `--seeds`, whose metrics are
    averaged over the seeds."""
    output: pathlib.Path
    """Folder for report.json and report.png."""
    figures: tuple[str, ...] = ()
    """Held-out metrics to report. Default: those that all runs have, without
    losses."""


def accuracy_report(config: AccuracyReportConfig) -> None:
    """Reads the runs, prints the table and draws the picture."""
    from training.engine.accuracy import report

    report(config.runs, config.output, config.figures)


main = cli.command(
    accuracy_report, AccuracyReportConfig, "training.accuracy_report", __doc__
)

if __name__ == "__main__":
    sys.exit(main())
