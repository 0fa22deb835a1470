"""Draws the metrics of runs over the updates, while they train or afterwards.

python -m training.curves runs/novels/train
"""

import dataclasses
import itertools
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Sequence

import tyro

from training.engine import cli
from training.engine.metric_names import metric_label

_HELDOUT = "heldout_"
_LEFT_OUT = ("per_second", "model_flops_utilization", "learning_rate")
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
    title: str | None = None
    """What the curves show. Default: what they are."""

    def __post_init__(self) -> None:
        if not self.workdirs:
            raise ValueError(
                "`workdirs` must name at least one work directory."
            )


def draw_curves(
    workdirs: Sequence[pathlib.Path],
    output: pathlib.Path,
    title: str | None = None,
) -> None:
    """Draws each metric of `metrics.jsonl` in a panel, with all runs in it.

    Speeds and the learning rate, which the configuration sets, are left out.
    """
    # Keras takes seconds to import, which `--help` need not wait for.
    from keras_fixedhead import pictures

    runs = {workdir: _read(workdir) for workdir in workdirs}
    names = (name for metrics in runs.values() for name in metrics)
    panels = dict.fromkeys(
        name.removeprefix(_HELDOUT)
        for name in names
        if not name.endswith(_LEFT_OUT)
    )
    rows = math.ceil(len(panels) / _COLUMNS)
    width, height = _PANEL_INCHES
    # An inch for the title and the legend.
    figure = pictures.new_figure(width * _COLUMNS, height * rows + 1)
    figure.suptitle(title or "Metrics over the updates of training")
    grid = figure.add_gridspec(rows, _COLUMNS)
    for number, name in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        # The last panel fills its row.
        place = slice(column, None) if number == len(panels) - 1 else column
        axis = figure.add_subplot(grid[row, place])
        label = metric_label(name)
        if name == "loss" and "embedding_loss" in panels:
            label = "Loss (weighted sum)"  # of losses in several units
        axis.set(xlabel="update", ylabel=label)
        axis.locator_params("x", integer=True)
        axis.grid(alpha=0.3)
        colors = itertools.cycle(pictures.COLORS)
        for (run, metrics), color in zip(_short_names(runs), colors):
            prefix = f"{run}, " if len(runs) > 1 else ""
            if name in metrics:
                steps, values = metrics[name]
                axis.plot(steps, values, color, alpha=0.3, linewidth=0.8)
                # Means of a twentieth of the curve around each value.
                half = len(values) // 40
                smooth = [
                    statistics.fmean(values[max(i - half, 0) : i + half + 1])
                    for i in range(len(values))
                ]
                label = f"{prefix}training, smoothed"
                axis.plot(steps, smooth, color, label=label)
            if _HELDOUT + name in metrics:
                axis.plot(
                    *metrics[_HELDOUT + name],
                    "o--",
                    color=color,
                    markersize=3,
                    label=f"{prefix}held out",
                )
        if "perplexity" in name:
            # It begins at the size of the vocabulary.
            pictures.use_plain_logs(axis, "y")
    pictures.add_legend(figure, columns=2)
    pictures.save_figure(figure, output)


def _short_names(runs):
    """Returns pairs of a folder's name, or of its path, and its metrics."""
    short = [workdir.name for workdir in runs]
    names = short if len({*short}) == len(short) else map(str, runs)
    return list(zip(names, runs.values()))


def _read(workdir: pathlib.Path) -> dict[str, tuple[list, list]]:
    """Returns the updates and the values of each metric."""
    path = workdir / "metrics.jsonl"
    metrics: dict[str, tuple[list, list]] = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # being written
        record = json.loads(line)
        step = record.pop("step")
        # Not all evaluations name their metrics `heldout_`.
        prefix = "" if "loss" in record else _HELDOUT
        for name, value in record.items():
            name = prefix + name.removeprefix(prefix)
            steps, values = metrics.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    if not metrics:
        raise ValueError(f"{path} has no figures yet")
    return metrics


def curves(config: CurvesConfig) -> None:
    """Draws the picture that the flags ask for."""
    output = config.output or config.workdirs[0] / "curves.png"
    draw_curves(config.workdirs, output, config.title)
    print(f"wrote {output}")


main = cli.command(curves, CurvesConfig, "training.curves", __doc__)

if __name__ == "__main__":
    sys.exit(main())
