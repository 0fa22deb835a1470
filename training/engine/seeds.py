"""The same run with several seeds, one after the other, and their figures."""

import json
import pathlib
import signal
import statistics
import subprocess
import sys

import rich.console
import rich.table

from keras_fixedhead.files import write_json

SUMMARY = "seeds.json"


def run_seeds(verb: str, config, args: list[str]) -> int:
    """Runs `seed`, `seed + 1`, ... each in a process and a folder of its own.

    A run that is finished is not run again, and an interrupted one continues,
    so the same command continues the whole. At the end `seeds.json` in the
    work directory holds each figure's values, mean and deviation.

    Args:
        verb: The module that runs one, such as "training.finetune".
        config: The run; `config.seeds` says how many.
        args: The command line that gave it.

    Returns:
        0, or the exit status of the first run that failed or was stopped.

    Raises:
        ValueError: `seeds` is not positive.
        OSError: The summary cannot be written.
    """
    first, count = config.training.seed, config.seeds
    if count < 1:
        raise ValueError(f"`seeds` must be positive. Received: {count}")
    folders = {}
    for seed in range(first, first + count):
        folders[seed] = config.run.workdir / f"seed_{seed}"
        print(f"seed {seed}: {folders[seed]}", file=sys.stderr, flush=True)
        status = _run(
            [
                *(sys.executable, "-m", verb),
                *args,  # what comes later counts
                *("--seeds", "1", "--seed", str(seed)),
                *("--workdir", str(folders[seed])),
            ]
        )
        if status:
            return status
    summary = summarize(folders)
    write_json(config.run.workdir / SUMMARY, summary)
    _print(summary)
    return 0


def read_figures(workdir: pathlib.Path) -> dict[str, float]:
    """The last figures on held-out data of a finished run.

    Args:
        workdir: Its work directory.

    Raises:
        OSError: It is not finished, or is none.
    """
    path = workdir / "preset" / "run.json"
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return {name: x for name, x in figures.items() if name != "step"}


def summarize(folders: dict[int, pathlib.Path]) -> dict:
    """Puts the figures of runs that differ in their seed together.

    Args:
        folders: Work directories of finished runs, by seed.

    Returns:
        `seeds`, a list, and `figures`, for each name `values` in the order of
        the seeds, their `mean` and their `deviation`, that of a sample (over
        n - 1); None for a single run.

    Raises:
        OSError: A run is not finished.
    """
    runs = [read_figures(folder) for folder in folders.values()]
    figures = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        figures[name] = {
            "values": values,
            "mean": statistics.fmean(values),
            "deviation": (
                statistics.stdev(values) if len(values) > 1 else None
            ),
        }
    return {"seeds": list(folders), "figures": figures}


def _run(command):
    """Runs a process and passes on what should stop it."""
    with subprocess.Popen(command) as process:
        # A terminal's Ctrl-C reaches both.
        before = {
            signal.SIGINT: signal.signal(
                signal.SIGINT, lambda signum, frame: None
            ),
            signal.SIGTERM: signal.signal(
                signal.SIGTERM,
                lambda signum, frame: process.send_signal(signum),
            ),
        }
        try:
            status = process.wait()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
    # Killed by a signal, as a shell says it.
    return status if status >= 0 else 128 - status


def _print(summary):
    table = rich.table.Table("figure", "mean", "deviation", "values")
    for name, figure in summary["figures"].items():
        deviation = figure["deviation"]
        table.add_row(
            name,
            f"{figure['mean']:.4f}",
            "" if deviation is None else f"{deviation:.4f}",
            " ".join(f"{value:.4f}" for value in figure["values"]),
        )
    rich.console.Console().print(table)
