"""Figures of finished runs beside the shapes of their encoders."""

import collections
import dataclasses
import json
import pathlib

import rich.console
import rich.table

from keras_fixedhead import pictures
from keras_fixedhead.files import write_json
from keras_fixedhead.planner import EncoderShape, ParameterCount
from training.engine.seeds import SUMMARY, summarize

_FIXED, _STANDARD = "fixed head size", "head size = embedding size / heads"
_COLORS = {_FIXED: "#d9541e", _STANDARD: "#4269d0"}
_MARKERS = {_FIXED: "o", _STANDARD: "s"}
# On which side of a point its shape stands, or those of two lines overlap.
_SIDES = {_FIXED: (-6, 6, "right"), _STANDARD: (6, -12, "left")}


@dataclasses.dataclass(frozen=True)
class Row:
    """A shape and what runs with it reached.

    Attributes:
        run: The work directory.
        shape: Of the encoder.
        parameters: Of the encoder, without a task's head.
        seeds: How many runs.
        figures: For each name `values`, `mean` and `deviation`, see
            `training.engine.seeds.summarize`.
    """

    run: pathlib.Path
    shape: EncoderShape
    parameters: int
    seeds: int
    figures: dict[str, dict]

    @property
    def kind(self) -> str:
        """Whether its heads have the standard size."""
        standard = all(
            len(set(sizes)) == 1 and sum(sizes) == self.shape.hidden_dim
            for sizes in self.shape.head_sizes
        )
        return _STANDARD if standard else _FIXED


def read_row(run: pathlib.Path) -> Row:
    """Reads a run, or those of several seeds in one folder.

    Args:
        run: Work directory of a finished run or of `--seeds`.

    Raises:
        ValueError: It is none, or is not finished.
    """
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
    return Row(
        run,
        shape,
        ParameterCount.of(shape).encoder,
        len(summary["seeds"]),
        summary["figures"],
    )


def report(config) -> list[Row]:
    """Prints the table; writes `report.json` and `report.png`.

    Args:
        config: A `training.accuracy_report.AccuracyReportConfig`.

    Returns:
        The rows, from the smallest encoder to the largest.

    Raises:
        ValueError: A run is not finished, or lacks a figure.
        OSError: The report cannot be written.
    """
    if not config.runs:
        raise ValueError("`runs` must name at least one work directory.")
    rows = sorted(map(read_row, config.runs), key=lambda row: row.parameters)
    figures = _chosen(rows, config.figures)
    config.output.mkdir(parents=True, exist_ok=True)
    write_json(
        config.output / "report.json",
        [
            {
                "run": str(row.run),
                "heads": row.kind,
                "shape": dataclasses.asdict(row.shape),
                "parameters": row.parameters,
                "seeds": row.seeds,
                "figures": {name: row.figures[name] for name in figures},
            }
            for row in rows
        ],
    )
    _draw(rows, figures, config.output / "report.png")
    rich.console.Console().print(_table(rows, figures))
    print(f"wrote {config.output / 'report.json'} and report.png")
    return rows


def _chosen(rows, wanted):
    """The names of the figures to report."""
    common = [
        name
        for name in rows[0].figures
        if all(name in row.figures for row in rows)
    ]
    missing = [name for name in wanted if name not in common]
    chosen = list(wanted) or [n for n in common if "loss" not in n]
    if missing or not chosen:
        raise ValueError(
            "`figures` must be names of figures that all runs have: "
            f"{', '.join(common) or 'there are none'}. "
            f"Received: {', '.join(missing) or 'none'}"
        )
    return chosen


def _table(rows, figures):
    table = rich.table.Table(
        "layers", "embedding", "heads", "head size", "parameters", "seeds"
    )
    for name in figures:
        table.add_column(name)
    for row in rows:
        shape = row.shape
        sizes = {size for layer in shape.head_sizes for size in layer}
        table.add_row(
            str(shape.num_layers),
            str(shape.hidden_dim),
            str(shape.num_heads),
            "-".join(str(size) for size in sorted({min(sizes), max(sizes)})),
            f"{row.parameters / 1e6:.1f}M",
            str(row.seeds),
            *(_with_deviation(row.figures[name]) for name in figures),
        )
    return table


def _with_deviation(figure):
    if figure["deviation"] is None:
        return f"{figure['mean']:.4f}"
    return f"{figure['mean']:.4f} ± {figure['deviation']:.4f}"


def _draw(rows, figures, output):
    figure = pictures.new_figure(5.5 * len(figures), 4)
    axes = figure.subplots(1, len(figures), squeeze=False)[0]
    lines = collections.defaultdict(list)
    for row in rows:
        lines[row.kind].append(row)
    for name, axis in zip(figures, axes):
        for kind, same in lines.items():
            axis.errorbar(
                [row.parameters / 1e6 for row in same],
                [row.figures[name]["mean"] for row in same],
                yerr=[row.figures[name]["deviation"] or 0.0 for row in same],
                color=_COLORS[kind],
                marker=_MARKERS[kind],
                capsize=3,
                label=kind,
            )
            *offset, side = _SIDES[kind]
            for row in same:
                axis.annotate(
                    f"d {row.shape.hidden_dim}, {row.shape.num_heads} heads",
                    (row.parameters / 1e6, row.figures[name]["mean"]),
                    textcoords="offset points",
                    xytext=offset,
                    horizontalalignment=side,
                    color=_COLORS[kind],
                    fontsize="x-small",
                )
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("parameters of the encoder, millions")
        axis.grid(alpha=0.3)
        axis.margins(x=0.2, y=0.15)  # for what stands beside the points
        axis.legend()
    pictures.save_figure(figure, output)
