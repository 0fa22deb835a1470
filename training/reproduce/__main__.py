"""Trains the paper's grid of shapes and checks its claims.

The grid is that of Bhojanapalli et al. 2020, with controls and several seeds.
RESULTS.md gets a verdict on each claim. The same command continues an
interrupted run.

KERAS_BACKEND=jax uses a GPU; the library's requirements, JAX, SciPy and PyYAML
are enough there. Without Matplotlib there are no pictures; `--minutes 0` draws
them elsewhere.
"""

import dataclasses
import os
import pathlib
import sys

from training.engine import cli
from training.engine.configs import check_at_least


@dataclasses.dataclass(frozen=True)
class ReproduceConfig:
    """What to train, and where."""

    data: pathlib.Path
    """Folder written by `python -m training.prepare stream`."""
    workdir: pathlib.Path
    """Folder of the runs and the report; runs in it are continued."""
    scale: str = "cpu"
    """cpu (about three hours on two cores), gpu (one GPU) or paper (the
    original sizes)."""
    minutes: float | None = None
    """Minutes after which to save and stop. 0 only writes the report. Default:
    make all runs."""
    workers: int | None = None
    """Runs at a time, which share out the CPUs. Default: one per CPU, or one
    if there is a GPU."""
    retry_failed: bool = False
    """Make failed runs again."""


def reproduce(config: ReproduceConfig) -> int:
    """Makes the missing runs, then writes the report.

    Returns 0, even if runs are still missing, or 128 plus the signal that
    stopped it.
    """
    # `--help` need not wait seconds for these imports.
    from keras_fixedhead.argument_checks import one_of
    from training.corpus.folder import read_stream
    from training.reproduce.cells import SCALES
    from training.reproduce.plan import Plan
    from training.reproduce.report import write_report
    from training.reproduce.runner import claimed, make_runs

    one_of("scale", config.scale, SCALES)
    check_at_least(0, minutes=config.minutes or 0)
    cpus = len(os.sched_getaffinity(0))
    if config.workers is not None and not 1 <= config.workers <= cpus:
        raise ValueError(
            f"`workers` must be from 1 to the number of CPUs, {cpus}. "
            f"Received: {config.workers}"
        )
    scale = SCALES[config.scale]
    stream = read_stream(config.data)
    settings = {
        "scale": config.scale,
        **dataclasses.asdict(scale),
        "data_sha256": stream.sha256,
    }
    with claimed(config.workdir, settings):
        plan = Plan(scale, config.workdir)
        if config.retry_failed:
            plan.forget_failures()
        signum = None
        if config.minutes != 0:
            signum = make_runs(
                plan, config.data, config.workers, config.minutes
            )
        write_report(plan, config.scale, stream)
    return 128 + signum if signum else 0


# Errors about a missing GPU, one for each worker, would bury the bars.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

main = cli.command(reproduce, ReproduceConfig, "training.reproduce", __doc__)

if __name__ == "__main__":
    sys.exit(main())
