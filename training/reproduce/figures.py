"""The pictures: the paper's figures from our runs, with intervals."""

import math
import pathlib

import numpy as np

from keras_fixedhead.pictures import new_figure, save_figure
from training.reproduce.plan import Plan
from training.reproduce.statistics import Noise, mean_interval

_CONFIDENCE = 0.95
_STANDARD, _FIXED, _WIDE, _OTHER = "#4269d0", "#d9541e", "#6f8f3f", "#8a5ab0"


def draw_language(
    plan: Plan, figures: dict, noise: Noise | None, output: pathlib.Path
) -> bool:
    """Draws Table 1 with Fig. 3a, Fig. 1, Fig. 3b and the controls.

    Points are means over seeds, bars their 95% confidence intervals.

    Args:
        plan: The runs.
        figures: Of each cell the figures of its runs, by seed.
        noise: Of the nats; None while it is not known, and there are no bars.
        output: Of the picture.

    Returns:
        Whether there was anything to draw.

    Raises:
        ModuleNotFoundError: Matplotlib is not installed.
        OSError: The picture cannot be written.
    """
    cells = {
        cell.name: cell
        for cell in plan.cells
        if cell.contexts is None and figures[cell.name]
    }
    if not cells:
        return False
    figure = new_figure(11, 8)
    heads, parameters, sizes, controls = figure.subplots(2, 2).flat

    def points(names):
        """Their means, and their bars."""
        return zip(*(_perplexity(figures[name], noise) for name in names))

    def line(axis, names, of, color, label):
        """A line over the cells that are there."""
        there = [name for name in names if name in cells]
        if not there:
            return
        means, bars = points(there)
        axis.errorbar(
            [of(cells[name]) for name in there],
            means,
            yerr=bars,
            color=color,
            marker="o",
            markersize=4,
            capsize=3,
            label=label,
        )

    def number(cell):
        return cell.shape["num_heads"]

    def size(cell):
        return cell.shape["head_size"]

    def thousands(cell):
        first = next(iter(figures[cell.name].values()))
        return first["parameters"] / 1000

    standard = ["standard_half", "standard", "standard_x2"]
    standard += ["standard_x4", "standard_x8"]
    fixed = ["standard", "heads_x2", "heads_x4", "heads_x8"]
    wide = ["standard", "wide_x2", "wide_x4", "wide_x8"]
    line(heads, standard, number, _STANDARD, "head size d / h")
    line(heads, wide, number, _WIDE, "d / h, feed-forward widened to match")
    line(heads, fixed, number, _FIXED, f"heads of {plan.scale.head_size}")
    heads.set_title("More heads (Table 1, Fig. 3a)")
    heads.set_xlabel("heads")

    embedding = ["standard", "embedding_x2"]
    grown = ["standard", "embedding_heads_x2"]
    d = plan.scale.hidden_dim
    line(parameters, embedding, thousands, _STANDARD, f"d from {d} to {2 * d}")
    line(
        parameters,
        grown,
        thousands,
        _OTHER,
        f"the same with heads of {plan.scale.head_size} (Fig. 4)",
    )
    line(parameters, wide, thousands, _WIDE, f"d = {d}, wider feed-forward")
    line(parameters, fixed, thousands, _FIXED, f"d = {d}, more heads")
    parameters.set_title("For as many parameters (Fig. 1, 3a, 4)")
    parameters.set_xlabel("parameters with the embedding, thousands")

    line(
        sizes,
        ["standard_x2", "heads_x2", "sizes_x2", "sizes_x4"],
        size,
        _FIXED,
        f"{2 * plan.scale.num_heads} heads",
    )
    line(
        sizes,
        ["standard_x2_cold"],
        size,
        _STANDARD,
        "with the temperature of the largest",
    )
    line(
        sizes,
        ["sizes_x4_hot"],
        size,
        _OTHER,
        "with the temperature of the smallest",
    )
    sizes.set_title("Larger heads (Table 2B, Fig. 3b)")
    sizes.set_xlabel("head size")
    for axis in (heads, sizes):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")

    named = ("heads_x4", "flops_x4", "deep_x2", "broad_x2", "deep_x3")
    named = [name for name in (*named, "broad_x3") if name in cells]
    if named:
        means, bars = points(named)
        controls.errorbar(
            means, range(len(named)), xerr=bars, fmt="o", color="0.2", capsize=3
        )
    controls.set_yticks(
        range(len(named)),
        [f"{name}, {thousands(cells[name]):,.0f}k" for name in named],
    )
    controls.invert_yaxis()
    controls.set_title("Operations, depth and width; parameters")
    controls.set_xlabel("perplexity of a word piece")
    for axis in (heads, parameters, sizes):
        axis.set_ylabel("perplexity of a word piece")
        if axis.has_data():
            axis.legend(fontsize="small")
    for axis in (heads, parameters, sizes, controls):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, output)
    return True


def draw_contexts(plan: Plan, figures: dict, output: pathlib.Path) -> bool:
    """Draws what heads of each size miss of synthetic contexts.

    On the left the divergence that is reached, on the right the error of the
    logits beside its bound.

    Args:
        plan: The runs.
        figures: Of each cell the figures of its runs, by seed.
        output: Of the picture.

    Returns:
        Whether there was anything to draw.

    Raises:
        ModuleNotFoundError: Matplotlib is not installed.
        OSError: The picture cannot be written.
    """
    cells = [
        cell
        for cell in plan.cells
        if cell.contexts is not None and figures[cell.name]
    ]
    if not cells:
        return False
    sizes = plan.scale.context_head_sizes
    figure = new_figure(11, 4)
    reached, logits = figure.subplots(1, 2)
    for cell, color in zip(cells, (_FIXED, _STANDARD)):
        found = list(figures[cell.name].values())
        label = cell.contexts.replace("_", "-")
        # {figure: [head sizes, seeds]}
        values = {
            name: [[f[f"{name}_{size}"] for f in found] for size in sizes]
            for name in ("kl", "log_error", "bound")
        }
        reached.errorbar(
            sizes,
            np.mean(values["kl"], axis=1),
            yerr=list(map(_bar, values["kl"])),
            color=color,
            marker="o",
            markersize=4,
            capsize=3,
            label=label,
        )
        logits.plot(
            sizes,
            np.mean(values["log_error"], axis=1),
            color=color,
            marker="o",
            markersize=4,
            label=f"{label}, reached",
        )
        logits.plot(
            sizes,
            np.mean(values["bound"], axis=1),
            color=color,
            linestyle="--",
            label=f"{label}, bound of theory.lowest_error",
        )
    reached.set_title("Divergence that a head reaches")
    reached.set_ylabel("Kullback-Leibler divergence, nats")
    reached.set_ylim(bottom=0.0)
    logits.set_title("Error of its logits, and the least there can be")
    logits.set_ylabel("relative to all of the logits")
    # At n - 1 the bound is 0, but for rounding, which is off this axis.
    logits.set_yscale("log")
    logits.set_ylim(bottom=0.05)
    for axis in (reached, logits):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.set_xlabel("head size")
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    save_figure(figure, output)
    return True


def _perplexity(found, noise):
    """Mean over seeds of a cell's runs, and its interval, above as below."""
    nats = [figures["nats"] for figures in found.values()]
    mean = math.exp(np.mean(nats))
    if noise is None:
        return mean, 0.0
    return mean, mean * math.expm1(
        noise.mean_half_width(len(nats), _CONFIDENCE)
    )


def _bar(values):
    width = mean_interval(values, _CONFIDENCE)
    return width if math.isfinite(width) else 0.0
