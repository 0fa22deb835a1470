"""Runs several seeds, one after the other, and summarizes their metrics."""

import json
import pathlib
import signal
import statistics
import subprocess
import sys

import rich.console
import rich.table

from keras_fixedhead.files import write_json
from training.engine.cli import exit_status, handling
from training.engine.configs import ExperimentConfig, check_positive

SUMMARY = "seeds.json"


def run_seeds(verb: str, config: ExperimentConfig, args: list[str]) -> int:
    """Runs `seed`, `seed + 1`, ... each in a process and a folder of its own.

    `verb` is a module, `args` its command line, which `config` was read from;
    finished runs are skipped. Writes `summarize` to `seeds.json`. Returns 0, or
    the exit status of the first run that failed or was stopped.
    """
    first, count = config.training.seed, config.seeds
    check_positive(seeds=count)
    folders = {}
    for seed in range(first, first + count):
        folders[seed] = config.run.workdir / f"seed_{seed}"
        print(f"seed {seed}: {folders[seed]}", file=sys.stderr, flush=True)
        status = _run(
            [
                *(sys.executable, "-m", verb),
                *args,  # the flags below override them
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
    """Returns the last held-out metrics of a finished run."""
    path = workdir / "preset" / "run.json"
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return {name: x for name, x in figures.items() if name != "step"}


def summarize(folders: dict[int, pathlib.Path]) -> dict:
    """Summarizes finished runs, given by seed, that differ in nothing else.

    Returns `seeds`, and for each metric of `figures` its `values`, their `mean`
    and sample `deviation` (over n - 1; None for a single run).
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
    """Runs a process, passes SIGTERM on, and returns its exit status."""
    with subprocess.Popen(command) as process:
        handlers = {
            # A terminal's Ctrl-C reaches the process, too.
            signal.SIGINT: lambda signum, frame: None,
            signal.SIGTERM: lambda signum, frame: process.send_signal(signum),
        }
        with handling(handlers):
            return exit_status(process.wait())


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
