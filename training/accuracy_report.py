r"""Draws accuracy against encoder parameters, for finished runs.

    python -m training.accuracy_report runs/mnli/* --output runs/mnli_report \
        --figures accuracy_matched

The table has the layout of Table 2 of Bhojanapalli et al. 2020, the picture
that of their Fig. 2: one line for heads of the standard size (embedding size /
heads), one for heads of a fixed size, with the deviation over seeds.
"""

import collections
import dataclasses
import json
import pathlib
import sys
import typing

import rich.console
import rich.table
import tyro

from training.engine import cli

# Keras takes seconds to import, which `--help` need not wait for.
if typing.TYPE_CHECKING:
    from keras_fixedhead.planner import EncoderShape

_FIXED, _STANDARD = "fixed head size", "head size = embedding size / heads"
# Marker, color, and the place of the shape beside its point; the two kinds
# differ so that they do not overlap.
_STYLES = {
    _FIXED: ("o", "#d9541e", (-6, 6), "right"),
    _STANDARD: ("s", "#4269d0", (6, -12), "left"),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A shape and what runs with it reached.

    `parameters` are the encoder's, without a task's head; `seeds` is the
    number of runs; for `figures` see `training.engine.records.summarize`.
    """

    run: pathlib.Path
    shape: "EncoderShape"
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
    return Row(
        run,
        shape,
        ParameterCount.of(shape).encoder,
        len(summary["seeds"]),
        summary["figures"],
    )


def _chosen(rows, wanted):
    common = [
        name
        for name in rows[0].figures
        if all(name in row.figures for row in rows)
    ]
    missing = [name for name in wanted if name not in common]
    chosen = list(wanted) or [n for n in common if "loss" not in n]
    if missing or not chosen:
        raise ValueError(
            "`figures` must be metrics that all runs have: "
            f"{', '.join(common) or 'there are none'}. "
            f"Received: {', '.join(missing) or 'none'}"
        )
    return chosen


def _table(rows, names):
    table = rich.table.Table(
        "layers", "embedding", "heads", "head size", "parameters", "seeds"
    )
    for name in names:
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
            *(_with_deviation(row.figures[name]) for name in names),
        )
    return table


def _with_deviation(figure):
    if figure["deviation"] is None:
        return f"{figure['mean']:.4f}"
    return f"{figure['mean']:.4f} ± {figure['deviation']:.4f}"


def _draw(rows, names, output):
    from keras_fixedhead import pictures

    figure = pictures.new_figure(5.5 * len(names), 4)
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    lines = collections.defaultdict(list)
    for row in rows:
        lines[row.kind].append(row)
    for name, axis in zip(names, axes):
        for kind, same in lines.items():
            marker, color, offset, side = _STYLES[kind]
            sizes = [row.parameters / 1e6 for row in same]
            means = [row.figures[name]["mean"] for row in same]
            errors = [row.figures[name]["deviation"] or 0.0 for row in same]
            axis.errorbar(
                sizes,
                means,
                errors,
                color=color,
                marker=marker,
                capsize=3,
                label=kind,
            )
            for row, *point in zip(same, sizes, means):
                axis.annotate(
                    f"d {row.shape.hidden_dim}, {row.shape.num_heads} heads",
                    point,
                    offset,
                    textcoords="offset points",
                    horizontalalignment=side,
                    color=color,
                    fontsize="x-small",
                )
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("parameters of the encoder, millions")
        axis.grid(alpha=0.3)
        axis.margins(x=0.2, y=0.15)  # for the shapes beside the points
        axis.legend()
    pictures.save_figure(figure, output)


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
    from keras_fixedhead.files import write_json

    rows = sorted(map(read_row, config.runs), key=lambda row: row.parameters)
    names = _chosen(rows, config.figures)
    output = config.output
    output.mkdir(parents=True, exist_ok=True)
    records = [
        {
            "run": str(row.run),
            "heads": row.kind,
            "shape": dataclasses.asdict(row.shape),
            "parameters": row.parameters,
            "seeds": row.seeds,
            "figures": {name: row.figures[name] for name in names},
        }
        for row in rows
    ]
    write_json(output / "report.json", records)
    _draw(rows, names, output / "report.png")
    rich.console.Console().print(_table(rows, names))
    print(f"wrote {output / 'report.json'} and report.png")


main = cli.command(
    accuracy_report, AccuracyReportConfig, "training.accuracy_report", __doc__
)

if __name__ == "__main__":
    sys.exit(main())
