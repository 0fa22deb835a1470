"""Verb: draws the curves of runs, while they train or afterwards.

python -m training.curves runs/novels/train
"""

import dataclasses
import json
import math
import pathlib
import sys

import tyro

from training.engine import cli

_PROG = "training.curves"

# What starts the name of a figure on held-out data.
_HELDOUT = "heldout_"

_PANEL_INCHES = (5.0, 3.0)
_COLUMNS = 2
# Training figures are means since the last report: faint, and smoothed.
_SMOOTHED = 0.05


@dataclasses.dataclass(frozen=True)
class CurvesConfig:
    """Runs side by side, in one picture."""

    workdirs: tyro.conf.Positional[tuple[pathlib.Path, ...]]
    """Work directories of the runs."""
    output: pathlib.Path | None = None
    """Picture to write; its ending names the format. None writes curves.png
    into the first work directory."""


def draw_curves(
    workdirs: tuple[pathlib.Path, ...], output: pathlib.Path
) -> None:
    """Draws every figure of `metrics.jsonl` over the updates.

    Args:
        workdirs: Work directories; what they have in common shares a panel.
        output: Picture to write.

    Raises:
        OSError: A work directory has no figures, or the picture cannot be
            written.
        ValueError: The figures are none yet or damaged, or the ending of
            `output` names no format.
    """
    # Keras takes seconds to import, which `--help` need not wait for.
    from keras_fixedhead.pictures import new_figure, save_figure

    runs = {workdir: _read(workdir) for workdir in workdirs}
    panels = list(
        dict.fromkeys(
            name.removeprefix(_HELDOUT)
            for curves in runs.values()
            for name in curves
            if not name.endswith("per_second")
        )
    )
    rows = math.ceil(len(panels) / _COLUMNS)
    width, height = _PANEL_INCHES
    figure = new_figure(width * _COLUMNS, height * rows)
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for name, axis in zip(panels, axes):
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("update")
        axis.grid(alpha=0.3)
        for number, (workdir, curves) in enumerate(runs.items()):
            label = f"{workdir} " if len(runs) > 1 else ""
            color = f"C{number}"
            if name in curves:
                steps, values = curves[name]
                axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
                axis.plot(
                    steps,
                    _smooth(values),
                    color=color,
                    label=f"{label}training",
                )
            if _HELDOUT + name in curves:
                axis.plot(
                    *curves[_HELDOUT + name],
                    color=color,
                    linestyle="--",
                    marker="o",
                    markersize=3,
                    label=f"{label}held out",
                )
        axis.legend()
    for axis in list(axes):  # those that are left
        axis.remove()
    save_figure(figure, output)


def _read(workdir):
    """The updates and values of each figure, by its name."""
    path = workdir / "metrics.jsonl"
    curves: dict[str, tuple[list, list]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(True), 1):
        if not line.endswith(b"\n"):
            break  # being written
        try:
            record = json.loads(line)
            step = float(record.pop("step"))
            figures = {name: float(value) for name, value in record.items()}
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(
                f"{path}:{number}: a line must be a JSON object of numbers "
                f"with a `step`. Received: {line[:80]!r}"
            ) from error
        for name, value in figures.items():
            steps, values = curves.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)
    if not curves:
        raise ValueError(f"{path} has no figures yet")
    return curves


def _smooth(values):
    """Means of what lies around each value."""
    half = int(_SMOOTHED * len(values) / 2)
    return [
        sum(near) / len(near)
        for near in (
            values[max(i - half, 0) : i + half + 1] for i in range(len(values))
        )
    ]


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config = tyro.cli(
        CurvesConfig,
        prog=f"python -m {_PROG}",
        description="Draws the curves of runs.",
        args=args,
        use_underscores=True,
    )
    if not config.workdirs:
        return cli.say_usage(
            _PROG, "WORKDIR ... [--output PICTURE]", "WORKDIR is missing"
        )
    return cli.run(_draw, config, _PROG)


def _draw(config):
    output = config.output or config.workdirs[0] / "curves.png"
    draw_curves(config.workdirs, output)
    print(f"wrote {output}")


if __name__ == "__main__":
    sys.exit(main())
