"""What runs record and show: config.json, metrics.jsonl, progress, seeds."""

import contextlib
import datetime
import json
import pathlib
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator

import rich.console
import rich.progress
import rich.table

from keras_fixedhead.files import replaced, write_json
from training.engine.cli import exit_status, handling
from training.engine.configs import ExperimentConfig, check_positive

SUMMARY = "seeds.json"

# The metrics to show: names, labels and formats.
_SHOWN = (
    ("loss", "loss", ".4f"),
    ("steps_per_second", "steps/s", ".2f"),
    ("examples_per_second", "examples/s", ",.0f"),
    ("tokens_per_second", "tokens/s", ",.0f"),
    ("model_flops_utilization", "MFU", ".0%"),
)


class RunRecords:
    """A run's records, which only the `chief` of the workers makes."""

    def __init__(self, workdir: pathlib.Path, steps: int, chief: bool):
        self.workdir = workdir
        self.steps = steps
        self.chief = chief
        self._config = workdir / "config.json"
        self._metrics = workdir / "metrics.jsonl"
        self._console = rich.console.Console(stderr=True, quiet=not chief)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("step"),
            rich.progress.MofNCompleteColumn(),
            rich.progress.BarColumn(bar_width=10),
            # Takes two lines of 80 columns, so that no other column is cut.
            rich.progress.TextColumn(
                "{task.fields[figures]}", table_column=rich.table.Column()
            ),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            # The loop hides what Orbit prints; rich would show it again.
            redirect_stdout=False,
        )
        self._settings: dict = {}

    def claim(self, settings: dict) -> None:
        """Raises a `ValueError` if the work directory has another run.

        `settings`, JSON values, decide the result of a run. They are written in
        `running`, so that a run that fails before does not bind the next one.
        """
        if self._config.exists():
            recorded = json.loads(self._config.read_text(encoding="utf-8"))
            asked = json.loads(json.dumps(settings))
            if different := ", ".join(differences(recorded, asked)):
                raise ValueError(
                    f"{self.workdir} holds a run that differs in {different}. "
                    "Use another `workdir`, or give the same values to "
                    "continue that run"
                )
        self._settings = settings

    @contextlib.contextmanager
    def running(self, first_step: int) -> Iterator[None]:
        """Shows progress from `first_step` on, until the block is left."""
        if self.chief:
            self._begin(first_step)
        with self._bar:
            self._bar.add_task(
                "", total=self.steps, completed=first_step, figures=""
            )
            yield

    def _begin(self, first_step):
        """Drops what a run that was killed recorded after `first_step`.

        The evaluation after that step is repeated.
        """
        self.workdir.mkdir(parents=True, exist_ok=True)
        write_json(self._config, self._settings)
        kept = ""
        if self._metrics.exists():
            for line in self._metrics.read_text(encoding="utf-8").splitlines():
                if not line.endswith("}"):
                    continue  # the process was killed while writing it
                record = json.loads(line)
                # Only records of updates have a loss.
                if record["step"] < first_step + ("loss" in record):
                    kept += f"{line}\n"
        _write(self._metrics, kept)

    def trained(self, step: int, outputs: dict[str, float]) -> None:
        """Records the metrics of the updates up to `step`.

        Moves the bar on a terminal; elsewhere prints a line.
        """
        self._append({"step": step, **outputs})
        shown = "  ".join(
            f"{label} {format(outputs[name], style)}"
            for name, label, style in _SHOWN
            if name in outputs
        )
        if self._console.is_terminal:
            [task] = self._bar.task_ids
            self._bar.update(task, completed=step, figures=shown)
        else:
            left = round((self.steps - step) / outputs["steps_per_second"])
            eta = datetime.timedelta(seconds=left)
            self.say(f"step {step} of {self.steps}: {shown}  ETA {eta}")

    def evaluated(self, step: int, figures: dict[str, float]) -> None:
        """Records an evaluation after update `step`, and prints a line."""
        self._append({"step": step, **figures})
        shown = "  ".join(f"{k} {v:.4f}" for k, v in figures.items())
        self.say(f"step {step} of {self.steps}: {shown}")

    def describe(self, preset: pathlib.Path) -> None:
        """Writes `run.json` into a preset: settings and last metrics."""
        metrics = self._metrics.read_text(encoding="utf-8").splitlines()
        description = {
            "settings": json.loads(self._config.read_text(encoding="utf-8")),
            "figures": json.loads(metrics[-1]),
        }
        # Unlike write_json, accepts a metric that is not finite.
        _write(preset / "run.json", json.dumps(description, indent=2) + "\n")

    def say(self, message: str) -> None:
        # Lines of a log file, and paths in them, must not wrap.
        self._console.print(
            message, highlight=False, markup=False, soft_wrap=True
        )

    def _append(self, record):
        if self.chief:
            with open(self._metrics, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")


def _write(path, text):
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def differences(there: dict, now: dict, prefix: str = "") -> Iterator[str]:
    """Describes each value that differs between two nested dictionaries."""
    for name in sorted(there.keys() | now.keys()):
        old, new = there.get(name), now.get(name)
        # Earlier versions had no fields for what came later.
        if not (old or new) and (name in there) != (name in now):
            continue
        # A part that is missing is like one without values.
        left, right = ({} if x is None else x for x in (old, new))
        if isinstance(left, dict) and isinstance(right, dict):
            yield from differences(left, right, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name} (there {old!r}, now {new!r})"


def run_seeds(verb: str, config: ExperimentConfig, args: list[str]) -> int:
    """Runs `seed`, `seed + 1`, ... each in a process and a folder of its own.

    Returns 0, or the exit status of the first run that failed or was stopped.
    """
    first, workdir = config.training.seed, config.run.workdir
    check_positive(seeds=config.seeds)
    folders = {}
    for seed in range(first, first + config.seeds):
        folders[seed] = workdir / f"seed_{seed}"
        print(f"seed {seed}: {folders[seed]}", file=sys.stderr, flush=True)
        # These override what `args` say.
        changes = ["--seeds", "1", "--seed", str(seed)]
        changes += ["--workdir", str(folders[seed])]
        command = [sys.executable, "-m", verb, *args, *changes]
        with subprocess.Popen(command) as process:
            handlers = {
                # A terminal's Ctrl-C reaches the process, too.
                signal.SIGINT: lambda signum, frame: None,
                signal.SIGTERM: lambda signum, frame: process.terminate(),
            }
            with handling(handlers):
                status = exit_status(process.wait())
        if status:
            return status
    summary = summarize(folders)
    write_json(workdir / SUMMARY, summary)
    table = rich.table.Table("figure", "mean", "deviation", "values")
    for name, figure in summary["figures"].items():
        numbers = [figure["mean"], figure["deviation"], *figure["values"]]
        mean, deviation, *values = (
            "" if number is None else f"{number:.4f}" for number in numbers
        )
        table.add_row(name, mean, deviation, " ".join(values))
    rich.console.Console().print(table)
    return 0


def summarize(folders: dict[int, pathlib.Path]) -> dict:
    """Returns means and sample deviations of finished runs, given by seed."""
    runs = []
    for folder in folders.values():
        text = (folder / "preset" / "run.json").read_text(encoding="utf-8")
        runs.append(json.loads(text)["figures"])
    figures = {}
    for name in [name for name in runs[0] if name != "step"]:
        values = [run[name] for run in runs]
        figures[name] = {
            "values": values,
            "mean": statistics.fmean(values),
            "deviation": statistics.stdev(values) if len(runs) > 1 else None,
        }
    return {"seeds": list(folders), "figures": figures}
