"""Which runs there are, what is known of each, and the rates they train at.

A run's folder holds `record.json` once it is finished, `failed.json` if it
cannot be, and meanwhile its checkpoint.
"""

import dataclasses
import json
import math
import pathlib
import shutil

import numpy as np

from training.reproduce.cells import Cell, grid
from training.reproduce.scales import Scale

# The cells whose learning rates are chosen by trial: the narrowest, a middle
# and the widest layer, and the deepest model. What is between takes what is
# between.
_PILOTS = ("standard", "heads_x4", "sizes_x4", "deep_x3")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        cell: What is trained.
        seed: Of the run.
        rate: The learning rate on trial; None of a run that counts, whose
            rate comes of the trials.
    """

    cell: Cell
    seed: int
    rate: float | None = None

    @property
    def name(self) -> str:
        """Where it is kept in the work directory."""
        if self.rate is not None:
            return f"rates/{self.cell.name}/{self.rate:g}"
        return f"runs/{self.cell.name}/seed_{self.seed}"


class Plan:
    """The runs of a scale in a work directory.

    Args:
        scale: The scale.
        workdir: Where their folders are.
    """

    def __init__(self, scale: Scale, workdir: pathlib.Path):
        self.scale = scale
        self.workdir = workdir
        self.cells = grid(scale)
        self.pilots = [
            Run(cell, 0, rate)
            for cell in self.cells
            if cell.name in _PILOTS and len(scale.rates) > 1
            for rate in scale.rates
        ]
        # The seeds of the trials do not count.
        self.runs = [
            Run(cell, seed)
            for cell in self.cells
            for seed in range(1, scale.seeds + 1)
        ]

    def folder(self, run: Run) -> pathlib.Path:
        """Where a run is kept."""
        return self.workdir / run.name

    def record(self, run: Run) -> dict | None:
        """What a finished run has recorded."""
        return _read(self.folder(run) / "record.json")

    def failure(self, run: Run) -> dict | None:
        """Why a run failed: `error`, and the `traceback` if there is one."""
        return _read(self.folder(run) / "failed.json")

    def waiting(self) -> list[Run]:
        """The runs that can be made now: of the trials while there are."""
        for runs in (self.pilots, self.runs):
            left = [
                run
                for run in runs
                if self.record(run) is None and self.failure(run) is None
            ]
            if left:
                return left
        return []

    def forget_failures(self) -> None:
        """Lets failed runs be made anew."""
        for run in (*self.pilots, *self.runs):
            if self.failure(run) is not None:
                shutil.rmtree(self.folder(run))

    def trials(self) -> dict[tuple[int, int], dict[float, float]]:
        """Nats of each rate on trial, by the layers and the width of each.

        A run that failed, as one that learned nothing, has infinitely many.
        """
        found = {}
        for run in self.pilots:
            record = self.record(run)
            nats = math.inf if record is None else record["figures"]["nats"]
            size = (run.cell.shape["num_layers"], run.cell.width)
            found.setdefault(size, {})[run.rate] = nats
        return found

    def rate(self, cell: Cell) -> float:
        """The learning rate of a cell, once the trials are made.

        That of its width, times what depth makes of the rate of a model
        whose layers have the standard width.

        Raises:
            RuntimeError: No rate on trial led to a finite loss.
        """
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
    """The rate at the vertex of the parabola around the best on trial.

    In the logarithm of the rate. At the end of those on trial, or beside one
    that failed, it is the best one itself.

    Args:
        nats: By rate, which are a factor apart.

    Raises:
        RuntimeError: None is finite.
    """
    rates = sorted(nats)
    values = [nats[rate] for rate in rates]
    if not any(map(math.isfinite, values)):
        raise RuntimeError(
            "no learning rate on trial led to a finite loss. "
            f"Tried: {', '.join(f'{rate:g}' for rate in rates)}"
        )
    i = values.index(min(values))
    if i in (0, len(values) - 1) or not math.isfinite(
        values[i - 1] + values[i + 1]
    ):
        return rates[i]
    left, here, right = values[i - 1 : i + 2]
    bend = left - 2 * here + right
    shift = 0.5 * (left - right) / bend if bend > 0 else 0.0
    step = rates[i + 1] / rates[i]
    return rates[i] * step**shift


def between(rates: dict[int, float], size: int) -> float:
    """The rate of a size: linear between those known, in both logarithms.

    Outside of them it is that of the nearest.
    """
    sizes = sorted(rates)
    known = np.log([rates[s] for s in sizes])
    return float(np.exp(np.interp(np.log(size), np.log(sizes), known)))


def _read(path):
    if not path.exists():
        return None
    return json.loads(path.read_text(encoding="utf-8"))
