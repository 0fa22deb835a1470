"""What a run writes down and shows: config.json, metrics.jsonl, progress."""

import contextlib
import datetime
import json
import pathlib

import rich.console
import rich.progress
import rich.table

from keras_fixedhead.files import replaced

# Of the figures of the updates, those beside the progress bar.
_SHOWN = (
    ("loss", "loss", ".4f"),
    ("steps_per_second", "steps/s", ".2f"),
    ("examples_per_second", "examples/s", ",.0f"),
    ("tokens_per_second", "tokens/s", ",.0f"),
    ("model_flops_utilization", "MFU", ".0%"),
)


class RunRecords:
    """The account of one run, kept in its work directory.

    A process that is not the chief of its run keeps none.

    Args:
        workdir: Folder of the run; is created when it begins.
        steps: Integer, updates of the whole run.
        chief: Bool, whether this process writes.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        steps: int,
        chief: bool,
    ):
        self.workdir = workdir
        self.steps = steps
        self.chief = chief
        self.console = rich.console.Console(stderr=True, quiet=not chief)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("step"),
            rich.progress.MofNCompleteColumn(),
            rich.progress.BarColumn(bar_width=10),
            # Of 80 columns it gets two lines, and the others stay whole.
            rich.progress.TextColumn(
                "{task.fields[figures]}", table_column=rich.table.Column()
            ),
            rich.progress.TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            # The loop hides what Orbit prints; rich would show it again.
            redirect_stdout=False,
        )
        self._bar_task = None
        self._settings = None

    def claim(self, settings: dict):
        """Checks that the work directory is this run's, or nobody's.

        It becomes this run's when `running` is entered. Before that a run may
        fail for a wrong value, which must not bind the next one.

        Args:
            settings: What decides the result of the run, as JSON values.

        Raises:
            ValueError: The work directory is that of another run; names the
                settings that differ.
        """
        if self._config.exists():
            recorded = json.loads(self._config.read_text(encoding="utf-8"))
            recorded = _flat(recorded)
            asked = _flat(json.loads(json.dumps(settings)))
            different = [
                f"{name} (there {recorded.get(name)!r}, now "
                f"{asked.get(name)!r})"
                for name in sorted(recorded.keys() | asked.keys())
                if recorded.get(name) != asked.get(name)
            ]
            if different:
                raise ValueError(
                    f"{self.workdir} holds a run that differs in "
                    f"{', '.join(different)}. Use another `workdir`, or give "
                    "the same values to continue that run"
                )
        self._settings = settings

    @contextlib.contextmanager
    def running(self, first_step: int, evaluate_first: bool):
        """Shows progress from `first_step` on, until the block is left.

        Args:
            first_step: Integer, the updates made so far.
            evaluate_first: Bool, whether the evaluation after these is made
                again.
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

    def trained(self, step: int, outputs: dict):
        """Records the outputs of the updates up to `step`.

        Moves the bar of a terminal; elsewhere prints a line.
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

    def evaluated(self, step: int, figures: dict):
        """Records an evaluation after update `step`, and prints a line."""
        self._append({"step": step, **figures})
        shown = "  ".join(f"{k} {v:.4f}" for k, v in figures.items())
        self.say(f"step {step} of {self.steps}: {shown}")

    def describe(self, preset: pathlib.Path):
        """Writes `run.json` into a preset: settings and last figures."""
        metrics = self._metrics.read_text(encoding="utf-8").splitlines()
        description = {
            "settings": json.loads(self._config.read_text(encoding="utf-8")),
            "figures": json.loads(metrics[-1]),
        }
        _write(preset / "run.json", json.dumps(description, indent=2) + "\n")

    def say(self, message: str):
        """Prints a line."""
        # A log file has no width to wrap a line, or a path in it, at.
        self.console.print(
            message, highlight=False, markup=False, soft_wrap=True
        )

    @property
    def _config(self):
        return self.workdir / "config.json"

    @property
    def _metrics(self):
        return self.workdir / "metrics.jsonl"

    def _append(self, record):
        if self.chief:
            with open(self._metrics, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")

    def _forget_after(self, step, evaluation):
        """Drops records of updates that a killed run did not save.

        Args:
            step: Integer, the last update saved.
            evaluation: Bool, whether to drop the evaluation after it, too.
        """
        if self._metrics.exists():
            lines = self._metrics.read_text(encoding="utf-8").splitlines()
            kept = []
            for line in lines:
                if not line.endswith("}"):
                    continue  # the process was killed while writing it
                record = json.loads(line)
                # Records of updates have a loss.
                last = step - (evaluation and "loss" not in record)
                if record["step"] <= last:
                    kept.append(line)
            _write(self._metrics, "".join(f"{line}\n" for line in kept))


def _write(path, text):
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _flat(settings, prefix=""):
    """Nested settings as one dictionary of dotted names."""
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
