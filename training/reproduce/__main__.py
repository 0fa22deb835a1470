"""Verb: trains the paper's grid of shapes and writes what became of its claims.

    python -m training.prepare text --source novels/ --vocabulary_size 2048 \
        --heldout 0.1 --output runs/novels/data
    python -m training.prepare stream --data runs/novels/data \
        --output runs/novels/stream
    python -m training.reproduce --scale cpu --data runs/novels/stream \
        --workdir runs/reproduction --minutes 9

The same command continues, run by run, until all are made; each time it
writes RESULTS.md, results.json and the pictures of what there is.
KERAS_BACKEND=jax takes a GPU; what the library requires, JAX, SciPy and
PyYAML are enough there, and without Matplotlib there are no pictures until
`--minutes 0` draws them elsewhere.
"""

import dataclasses
import os
import pathlib
import sys

import tyro

from training.engine import cli
from training.reproduce.scales import SCALES


@dataclasses.dataclass(frozen=True)
class ReproduceConfig:
    """What is trained, and where."""

    data: pathlib.Path
    """Folder written by `python -m training.prepare stream`."""
    workdir: pathlib.Path
    """Folder of the runs and of the report; what is there is continued."""
    scale: str = "cpu"
    """cpu (about three hours on two cores), gpu (one GPU) or paper (the
    original sizes)."""
    minutes: float | None = None
    """Save and stop after so many, 0 only writes the report; None makes all
    runs."""
    workers: int | None = None
    """Runs at a time; they share out the CPUs. None is one for each CPU, or
    one where there is a GPU."""
    retry_failed: bool = False
    """Make the runs that failed anew."""


def reproduce(config: ReproduceConfig) -> int:
    """Makes the runs that are missing, then writes the report.

    Returns:
        0, also while runs are missing; or 128 and the signal that stopped it.

    Raises:
        ValueError: An argument is wrong, or the work directory is that of
            other runs.
        RuntimeError: No learning rate led to a finite loss.
        OSError: A file cannot be read or written.
    """
    if config.scale not in SCALES:
        raise ValueError(
            f"`scale` must be one of {', '.join(SCALES)}. "
            f"Received: {config.scale!r}"
        )
    for name in ("minutes", "workers"):
        value = getattr(config, name)
        if value is not None and value < (1 if name == "workers" else 0):
            raise ValueError(f"`{name}` must be positive. Received: {value}")
    cpus = len(os.sched_getaffinity(0))
    if config.workers is not None and config.workers > cpus:
        raise ValueError(
            f"`workers` must be at most the number of CPUs, {cpus}. "
            f"Received: {config.workers}"
        )
    # These take seconds to import, which `--help` need not wait for.
    from training.corpus.stream import read_stream
    from training.reproduce.plan import Plan
    from training.reproduce.report import write_report
    from training.reproduce.runner import claimed, make_runs

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


def parse(args: list[str] | None = None) -> ReproduceConfig:
    """Reads what is made from the command line."""
    return tyro.cli(
        ReproduceConfig,
        args=args,
        prog="python -m training.reproduce",
        description="Trains the grid of shapes of Bhojanapalli et al. 2020, "
        "with controls, several seeds each, and writes RESULTS.md with what "
        "became of each claim. The same command continues what was "
        "interrupted.",
        use_underscores=True,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config = parse(args)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        return reproduce(config)
    except (ValueError, OSError, RuntimeError) as error:
        cli.say_error("training.reproduce", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
