"""The runs of a scale, their records, and their learning rates.

A run's folder holds `record.json` once it is finished, `failed.json` if it
failed, and its checkpoint until then.
"""

import dataclasses
import json
import math
import pathlib
import shutil

import numpy as np

from training.engine.cli import RunFailed
from training.reproduce.cells import Cell, Scale, grid

# The cells whose learning rates are tuned: the narrowest, a middle and the
# widest layer, and the deepest model. Rates of others are interpolated.
_PILOTS = ("standard", "heads_x4", "sizes_x4", "deep_x3")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training of a cell; `rate`, unless 0, is a learning rate on trial."""

    cell: Cell
    seed: int
    rate: float = 0.0

    @property
    def split(self) -> str:
        """The text that the run is measured on."""
        return "tuning" if self.rate else "test"

    @property
    def name(self) -> str:
        """Its folder within the work directory."""
        if self.rate:
            return f"rates/{self.cell.name}/{self.rate:g}"
        return f"runs/{self.cell.name}/seed_{self.seed}"


class Plan:
    """The runs of a scale, whose folders are in a work directory."""

    def __init__(self, scale: Scale, workdir: pathlib.Path):
        self.scale = scale
        self.workdir = workdir
        self.cells = grid(scale)
        self.language_cells = [c for c in self.cells if not c.contexts]
        self.context_cells = [c for c in self.cells if c.contexts]
        self.pilots = [
            Run(cell, 0, rate)
            for cell in self.cells
            if cell.name in _PILOTS and len(scale.rates) > 1
            for rate in scale.rates
        ]
        # Seed 0 is that of the trials.
        self.runs = [
            Run(cell, seed)
            for cell in self.cells
            for seed in range(1, scale.seeds + 1)
        ]

    def folder(self, run: Run) -> pathlib.Path:
        return self.workdir / run.name

    def record(self, run: Run) -> dict | None:
        """The record of a finished run."""
        return _read(self.folder(run) / "record.json")

    def failure(self, run: Run) -> dict | None:
        """The `error` of a failed run, and its `traceback` if there is one."""
        return _read(self.folder(run) / "failed.json")

    def waiting(self) -> list[Run]:
        """The runs that can be made now: first the trials, then the rest."""
        trials, runs = (
            [run for run in runs if not (self.record(run) or self.failure(run))]
            for runs in (self.pilots, self.runs)
        )
        return trials or runs

    def forget_failures(self) -> None:
        """Deletes failed runs, so that they are made again."""
        for run in (*self.pilots, *self.runs):
            if self.failure(run) is not None:
                shutil.rmtree(self.folder(run))

    def trials(self) -> dict[tuple[int, int], dict[float, float]]:
        """Nats by layers and width, and by rate; infinite if a run failed."""
        found: dict[tuple[int, int], dict[float, float]] = {}
        for run in self.pilots:
            record = self.record(run)
            nats = math.inf if record is None else record["figures"]["nats"]
            size = (run.cell.shape["num_layers"], run.cell.width)
            found.setdefault(size, {})[run.rate] = nats
        return found

    def updates(self, run: Run) -> int:
        if run.cell.contexts:
            return self.scale.context_steps * len(self.scale.context_head_sizes)
        return self.scale.steps

    def rate(self, run: Run) -> float:
        """The learning rate of a run, once the trials are made; 0 for contexts.

        A rate of the width, times a factor of the depth.
        """
        cell = run.cell
        if cell.contexts or run.rate:
            return run.rate
        if not self.pilots:
            return self.scale.rates[0]
        best = {size: best_rate(nats) for size, nats in self.trials().items()}
        of_width = {
            width: rate
            for (layers, width), rate in best.items()
            if layers == self.scale.num_layers
        }
        of_depth = {
            layers: rate / of_width[width]
            for (layers, width), rate in best.items()
        }
        return between(of_width, cell.width) * between(
            of_depth, cell.shape["num_layers"]
        )


def best_rate(nats: dict[float, float]) -> float:
    """The rate at the vertex of the parabola around the best rate tried.

    The parabola is in the logarithm of the rates, which are a factor apart.
    If the best is the lowest or highest, or beside one that failed, it is
    taken itself. `nats` are by rate.
    """
    rates = sorted(nats)
    values = [nats[rate] for rate in rates]
    if not any(map(math.isfinite, values)):
        raise RunFailed(
            "no learning rate led to a finite loss. "
            f"Tried: {', '.join(f'{rate:g}' for rate in rates)}"
        )
    i = values.index(min(values))
    left, here, right = [math.inf, *values, math.inf][i : i + 3]
    bend = left - 2 * here + right
    if not math.isfinite(bend):
        return rates[i]
    shift = 0.5 * (left - right) / bend if bend > 0 else 0.0
    step = rates[i + 1] / rates[i]
    return rates[i] * step**shift


def between(rates: dict[int, float], size: int) -> float:
    """Interpolates the rate of a size linearly, in both logarithms.

    Outside of the known sizes it is the rate of the nearest.
    """
    sizes = sorted(rates)
    known = np.log([rates[s] for s in sizes])
    return float(np.exp(np.interp(np.log(size), np.log(sizes), known)))


def _read(path):
    if not path.exists():
        return None
    return json.loads(path.read_text(encoding="utf-8"))
