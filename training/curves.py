"""Draws the metrics of runs over the updates, while they train or afterwards.

python -m training.curves runs/novels/train
"""

import dataclasses
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Sequence

import tyro

from training.engine import cli

_HELDOUT = "heldout_"
_PANEL_INCHES = (5.0, 3.0)
_COLUMNS = 2


@dataclasses.dataclass(frozen=True)
class CurvesConfig:
    """Runs side by side, in one picture."""

    workdirs: tyro.conf.Positional[tuple[pathlib.Path, ...]]
    """Work directories of the runs."""
    output: pathlib.Path | None = None
    """Picture to write; its ending names the format. None writes curves.png
    into the first work directory."""

    def __post_init__(self) -> None:
        if not self.workdirs:
            raise ValueError(
                "`workdirs` must name at least one work directory."
            )


def draw_curves(workdirs: Sequence[pathlib.Path], output: pathlib.Path) -> None:
    """Draws each metric of `metrics.jsonl` in a panel, with all runs in it."""
    # Keras takes seconds to import, which `--help` need not wait for.
    from keras_fixedhead.pictures import new_figure, save_figure

    runs = {workdir: _read(workdir) for workdir in workdirs}
    names = (name for metrics in runs.values() for name in metrics)
    panels = dict.fromkeys(
        name.removeprefix(_HELDOUT)
        for name in names
        if not name.endswith("per_second")
    )
    rows = math.ceil(len(panels) / _COLUMNS)
    width, height = _PANEL_INCHES
    figure = new_figure(width * _COLUMNS, height * rows)
    for number, name in enumerate(panels, start=1):
        axis = figure.add_subplot(rows, _COLUMNS, number)
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("update")
        axis.grid(alpha=0.3)
        for index, (workdir, metrics) in enumerate(runs.items()):
            color = f"C{index}"
            prefix = f"{workdir} " if len(runs) > 1 else ""
            if name in metrics:
                steps, values = metrics[name]
                axis.plot(steps, values, color, alpha=0.25, linewidth=0.8)
                # Means of a twentieth of the curve around each value.
                half = len(values) // 40
                smooth = [
                    statistics.fmean(values[max(i - half, 0) : i + half + 1])
                    for i in range(len(values))
                ]
                axis.plot(steps, smooth, color, label=f"{prefix}training")
            if _HELDOUT + name in metrics:
                axis.plot(
                    *metrics[_HELDOUT + name],
                    f"{color}o--",
                    markersize=3,
                    label=f"{prefix}held out",
                )
        # Long names of folders would leave no room for the curves.
        axis.legend(fontsize="small").set_in_layout(False)
    save_figure(figure, output)


def _read(workdir: pathlib.Path) -> dict[str, tuple[list, list]]:
    """Returns the updates and the values of each metric."""
    path = workdir / "metrics.jsonl"
    metrics: dict[str, tuple[list, list]] = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # being written
        record = json.loads(line)
        step = record.pop("step")
        for name, value in record.items():
            steps, values = metrics.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    if not metrics:
        raise ValueError(f"{path} has no figures yet")
    return metrics


def curves(config: CurvesConfig) -> None:
    """Draws the picture that the flags ask for."""
    output = config.output or config.workdirs[0] / "curves.png"
    draw_curves(config.workdirs, output)
    print(f"wrote {output}")


main = cli.command(curves, CurvesConfig, "training.curves", __doc__)

if __name__ == "__main__":
    sys.exit(main())
