"""What a run records and shows: config.json, metrics.jsonl, progress."""

import contextlib
import datetime
import json
import pathlib
from collections.abc import Iterator

import rich.console
import rich.progress
import rich.table

from keras_fixedhead.files import replaced

# The metrics beside the progress bar: names, labels and formats.
_SHOWN = (
    ("loss", "loss", ".4f"),
    ("steps_per_second", "steps/s", ".2f"),
    ("examples_per_second", "examples/s", ",.0f"),
    ("tokens_per_second", "tokens/s", ",.0f"),
    ("model_flops_utilization", "MFU", ".0%"),
)


class RunRecords:
    """The records of one run of `steps` updates, in its work directory.

    Only the `chief` of the workers writes and prints.
    """

    def __init__(self, workdir: pathlib.Path, steps: int, chief: bool):
        self.workdir = workdir
        self.steps = steps
        self.chief = chief
        self._config = workdir / "config.json"
        self._metrics = workdir / "metrics.jsonl"
        self.console = rich.console.Console(stderr=True, quiet=not chief)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("step"),
            rich.progress.MofNCompleteColumn(),
            rich.progress.BarColumn(bar_width=10),
            # Takes two lines of 80 columns, so that no other column is cut.
            rich.progress.TextColumn(
                "{task.fields[figures]}", table_column=rich.table.Column()
            ),
            rich.progress.TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            # The loop hides what Orbit prints; rich would show it again.
            redirect_stdout=False,
        )
        self._bar_task = rich.progress.TaskID(0)
        self._settings: dict = {}

    def claim(self, settings: dict) -> None:
        """Raises a `ValueError` if the work directory has another run.

        `settings`, JSON values, decide the result of a run. They are written in
        `running`, so that a run that fails before does not bind the next one.
        """
        if self._config.exists():
            recorded = json.loads(self._config.read_text(encoding="utf-8"))
            asked = json.loads(json.dumps(settings))
            if different := differences(recorded, asked):
                raise ValueError(
                    f"{self.workdir} holds a run that differs in "
                    f"{', '.join(different)}. Use another `workdir`, or give "
                    "the same values to continue that run"
                )
        self._settings = settings

    @contextlib.contextmanager
    def running(self, first_step: int, evaluate_first: bool) -> Iterator[None]:
        """Shows progress from `first_step` on, until the block is left.

        With `evaluate_first`, the evaluation after that step is repeated.
        """
        if self.chief:
            self.workdir.mkdir(parents=True, exist_ok=True)
            _write(self._config, json.dumps(self._settings, indent=2) + "\n")
            self._forget_after(first_step, evaluate_first)
        with self._bar:
            self._bar_task = self._bar.add_task(
                "", total=self.steps, completed=first_step, figures=""
            )
            yield

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
        self._bar.update(self._bar_task, completed=step, figures=shown)
        if not self.console.is_terminal:
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
        """Prints a line."""
        # Lines of a log file, and paths in them, must not wrap.
        self.console.print(
            message, highlight=False, markup=False, soft_wrap=True
        )

    def _append(self, record):
        if self.chief:
            with open(self._metrics, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")

    def _forget_after(self, step, evaluation):
        """Drops the records of updates after `step`, the last one saved.

        With `evaluation`, drops the evaluation after `step`, too.
        """
        if not self._metrics.exists():
            return
        kept = []
        for line in self._metrics.read_text(encoding="utf-8").splitlines():
            if not line.endswith("}"):
                continue  # the process was killed while writing it
            record = json.loads(line)
            # Only records of updates have a loss.
            last = step - (evaluation and "loss" not in record)
            if record["step"] <= last:
                kept.append(f"{line}\n")
        _write(self._metrics, "".join(kept))


def _write(path, text):
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def differences(there: dict, now: dict) -> list[str]:
    """Describes each value that differs between two nested dictionaries."""
    there, now = _flat(there), _flat(now)
    return [
        f"{name} (there {there.get(name)!r}, now {now.get(name)!r})"
        for name in sorted(there.keys() | now.keys())
        if there.get(name) != now.get(name)
    ]


def _flat(settings, prefix=""):
    """Returns nested settings as one dictionary of dotted names."""
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
