r"""Draws accuracy against encoder parameters, for finished runs.

    python -m training.accuracy_report runs/mnli/* --output runs/mnli_report \
        --figures accuracy_matched

The table has the layout of Table 2 of Bhojanapalli et al. 2020, the picture
that of their Fig. 2: one line for heads of the standard size (embedding size /
heads), one for heads of a fixed size, with the deviation over seeds.
"""

import dataclasses
import json
import pathlib
import sys
from statistics import fmean

import rich.console
import rich.table
import tyro

from training.engine import cli
from training.engine.metric_names import metric_label

_FIXED, _STANDARD = "fixed head size", "head size = embedding size / heads"
_SHAPE = ("hidden_dim", "num_layers", "num_heads")


@dataclasses.dataclass(frozen=True)
class AccuracyReportConfig:
    """Which runs, and where the report goes."""

    runs: tyro.conf.Positional[tuple[pathlib.Path, ...]]
    """Work directories of finished runs, or of `--seeds`, whose metrics are
    averaged over the seeds."""
    output: pathlib.Path
    """Folder for report.json and report.png."""
    figures: tuple[str, ...] = ()
    """Held-out metrics to report. Default: those that all runs have, without
    losses."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("`runs` must name at least one work directory.")


def accuracy_report(config: AccuracyReportConfig) -> None:
    """Prints a table, and writes `report.json` and `report.png`."""
    # Keras takes seconds to import, which `--help` need not wait for.
    from keras_fixedhead.files import write_json

    rows = sorted(map(read_row, config.runs), key=lambda row: row["parameters"])
    names = _chosen(rows, config.figures)
    for row in rows:
        row["figures"] = {name: row["figures"][name] for name in names}
    output = config.output
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / "report.json", rows)
    _draw(rows, names, output / "report.png")
    rich.console.Console().print(_table(rows, names))
    print(f"wrote {output / 'report.json'} and report.png")


def read_row(run: pathlib.Path) -> dict:
    """Reads a finished run, or the finished runs of `--seeds` in a folder."""
    from keras_fixedhead.planner import EncoderShape, ParameterCount
    from training.engine.records import SUMMARY, summarize

    try:
        if (run / SUMMARY).exists():
            summary = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
            preset = run / f"seed_{summary['seeds'][0]}" / "preset"
        else:
            summary = summarize({0: run})
            preset = run / "preset"
        encoder = json.loads((preset / "config.json").read_text("utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"`runs` must be work directories of finished runs, or of runs "
            f"with --seeds. Received: {run}: {error}"
        ) from error
    config = encoder["config"]
    names = {field.name for field in dataclasses.fields(EncoderShape)}
    shape = EncoderShape(**{k: v for k, v in config.items() if k in names})
    return {
        "run": str(run),
        "heads": _STANDARD if shape.standard_heads else _FIXED,
        "shape": dataclasses.asdict(shape),
        "parameters": ParameterCount.of(shape).encoder,
        "seeds": len(summary["seeds"]),
        "figures": summary["figures"],
    }


def _chosen(rows, wanted):
    """Returns the names of the figures to report."""
    first, *others = (row["figures"] for row in rows)
    common = [name for name in first if all(name in x for x in others)]
    chosen = wanted or [name for name in common if "loss" not in name]
    if not chosen or not {*chosen} <= {*common}:
        raise ValueError(
            "`figures` must be metrics that all runs have: "
            f"{', '.join(sorted(common)) or 'there are none'}. "
            f"Received: {', '.join(wanted) or 'none'}"
        )
    return chosen


def _table(rows, names):
    from keras_fixedhead.planner import EncoderShape

    table = rich.table.Table(
        "layers", "embedding", "heads", "head size", "parameters", "seeds",
        *names,
    )  # fmt: skip
    for row in rows:
        shape = EncoderShape(**row["shape"])
        sizes = {size for layer in shape.head_sizes for size in layer}
        table.add_row(
            str(shape.num_layers),
            str(shape.hidden_dim),
            str(shape.num_heads),
            "-".join(map(str, sorted({min(sizes), max(sizes)}))),
            f"{row['parameters'] / 1e6:.1f}M",
            str(row["seeds"]),
            *(_with_deviation(row["figures"][name]) for name in names),
        )
    return table


def _with_deviation(figure):
    if figure["deviation"] is None:
        return f"{figure['mean']:.4f}"
    return f"{figure['mean']:.4f} ± {figure['deviation']:.4f}"


def _draw(rows, names, output):
    from keras_fixedhead import pictures

    figure = pictures.new_figure(5.5 * len(names), 4.5)
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    kinds = {_FIXED: ("o-", pictures.COLORS[1])}
    kinds[_STANDARD] = ("s-", pictures.COLORS[0])
    for name, axis in zip(names, axes):
        shapes = {}
        for kind, (marker, color) in kinds.items():
            same = [row for row in rows if row["heads"] == kind]
            sizes = [row["parameters"] / 1e6 for row in same]
            figures = [row["figures"][name] for row in same]
            means = [figure["mean"] for figure in figures]
            errors = [figure["deviation"] or 0.0 for figure in figures]
            axis.errorbar(
                sizes, means, errors, fmt=marker, color=color, label=kind
            )
            for row, *point in zip(same, sizes, means, errors):
                shape = row["shape"]
                key = [shape[part] for part in _SHAPE]
                shapes.setdefault(tuple(key), {})[kind] = point
        differences = {}
        for (dimension, *_), points in shapes.items():
            groups = [[point] for point in points.values()]
            if max(points.values())[0] < 1.15 * min(points.values())[0]:
                groups = [[*points.values()]]  # Two labels would collide.
            for group in groups:
                x, y, error = zip(*group)
                place = (fmean(x), max(map(sum, zip(y, error))))
                style = {"textcoords": "offset points", "ha": "center"}
                axis.annotate(f"d = {dimension}", place, (0, 5), **style)
            if len(points) == 2:
                gain = points[_FIXED][1] - points[_STANDARD][1]
                differences[gain] = dimension
        if differences:
            gain = max(differences, key=abs)
            axis.set_title(
                f"Fixed heads differ most at d = {differences[gain]}: "
                f"{gain:+.3f}"
            )
        axis.set_ylabel(metric_label(name))
        axis.set_xlabel("parameters of the encoder (millions)")
        axis.margins(0.1, 0.15)
        axis.grid(alpha=0.3)
    pictures.add_legend(figure)
    pictures.save_figure(figure, output)


main = cli.command(
    accuracy_report, AccuracyReportConfig, "training.accuracy_report", __doc__
)

if __name__ == "__main__":
    sys.exit(main())
