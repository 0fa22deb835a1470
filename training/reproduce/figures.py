"""The paper's figures drawn from our runs, with 95% confidence intervals."""

import math
import pathlib

import numpy as np

from keras_fixedhead.pictures import new_figure, save_figure
from training.reproduce.claims import Noise, mean_interval
from training.reproduce.plan import Plan

_CONFIDENCE = 0.95
_STANDARD = "standard_half standard standard_x2 standard_x4 standard_x8"
_WIDE = "standard wide_x2 wide_x4 wide_x8"
_FIXED = "standard heads_x2 heads_x4 heads_x8"
_SIZES = "standard_x2 heads_x2 sizes_x2 sizes_x4"
_CONTROLS = "heads_x4 flops_x4 deep_x2 broad_x2 deep_x3 broad_x3"
# Of each line: its picture, label, colour and cells.
_LINES = (
    ("heads", "head size d / h", "C0", _STANDARD),
    ("heads", "d / h, feed-forward widened to match", "C2", _WIDE),
    ("heads", "heads of one size", "C1", _FIXED),
    ("parameters", "d doubled", "C0", "standard embedding_x2"),
    (
        "parameters",
        "d doubled, heads of one size (Fig. 4)",
        "C4",
        "standard embedding_heads_x2",
    ),
    ("parameters", "wider feed-forward", "C2", _WIDE),
    ("parameters", "more heads of one size", "C1", _FIXED),
    ("sizes", "larger heads", "C1", _SIZES),
    ("sizes", "temperature of the largest", "C0", "standard_x2_cold"),
    ("sizes", "temperature of the smallest", "C4", "sizes_x4_hot"),
    ("controls", "controls", "C7", _CONTROLS),
)


def draw_language(
    plan: Plan, metrics: dict, noise: Noise | None, output: pathlib.Path
) -> bool:
    """Draws mean perplexities over the seeds of `metrics`, by cell and seed.

    Bars need the noise. Returns whether there was anything to draw.
    """
    cells = {c.name: c for c in plan.language_cells if metrics[c.name]}
    if not cells:
        return False

    def thousands(cell):
        first = next(iter(metrics[cell.name].values()))
        return first["parameters"] / 1000

    # Title, label of the x-axis, and x of a cell.
    pictures = {
        "heads": (
            "More heads (Table 1, Fig. 3a)",
            "heads",
            lambda cell: cell.shape["num_heads"],
        ),
        "parameters": (
            "For as many parameters (Fig. 1, 3a, 4)",
            "parameters with the embedding, thousands",
            thousands,
        ),
        "sizes": (
            "Larger heads (Table 2B, Fig. 3b)",
            "head size",
            lambda cell: cell.shape["head_size"],
        ),
        "controls": (
            "Operations, depth and width",
            "cell and its parameters",
            lambda cell: f"{cell.name}\n{thousands(cell):,.0f}k",
        ),
    }
    figure = new_figure(11, 8)
    axes = dict(zip(pictures, figure.subplots(2, 2).flat))
    for picture, label, color, line in _LINES:
        names = [name for name in line.split() if name in cells]
        if names:
            x = [pictures[picture][2](cells[name]) for name in names]
            y, bars = zip(*(_perplexity(metrics[n], noise) for n in names))
            style = "o" if picture == "controls" else "o-"
            axes[picture].errorbar(
                x, y, bars, fmt=style, color=color, label=label, capsize=3
            )
    for picture, (title, x_label, _) in pictures.items():
        powers = picture in ("heads", "sizes")
        _finish(axes[picture], title, x_label, "perplexity", powers)
    save_figure(figure, output)
    return True


def draw_contexts(plan: Plan, metrics: dict, output: pathlib.Path) -> bool:
    """Draws what heads of each size miss of synthetic contexts.

    `metrics` are by cell and seed. Returns whether there was anything to draw.
    """
    cells = [cell for cell in plan.context_cells if metrics[cell.name]]
    if not cells:
        return False
    sizes = plan.scale.context_head_sizes
    figure = new_figure(11, 4)
    reached, logits = figure.subplots(1, 2)
    for cell, color in zip(cells, ("C1", "C0")):
        runs = metrics[cell.name].values()
        kl, error, bound = (
            [[found[f"{name}_{size}"] for found in runs] for size in sizes]
            for name in ("kl", "log_error", "bound")
        )  # each [head sizes, seeds]
        bars = [0.0] * len(sizes)
        if len(runs) > 1:
            bars = [mean_interval(values, _CONFIDENCE) for values in kl]
        kind = cell.contexts.replace("_", "-")
        reached.errorbar(
            sizes, np.mean(kl, 1), bars, fmt="o-", color=color, label=kind
        )
        logits.plot(sizes, np.mean(error, 1), "o-", color=color, label=kind)
        logits.plot(
            sizes, np.mean(bound, 1), "--", color=color, label=f"{kind}, bound"
        )
    reached.set_ylim(bottom=0.0)
    # At n - 1 the bound is 0 except for rounding, which is off this axis.
    logits.set_yscale("log")
    logits.set_ylim(bottom=0.05)
    title = "Divergence that a head reaches"
    _finish(reached, title, "head size", "nats", powers=True)
    title = "Error of its logits, and the least there can be"
    _finish(logits, title, "head size", "relative error", powers=True)
    save_figure(figure, output)
    return True


def _finish(axis, title, x_label, y_label, powers):
    axis.set(title=title, xlabel=x_label, ylabel=y_label)
    if powers:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize="small")
    axis.grid(alpha=0.3)


def _perplexity(found, noise):
    """Returns the mean over a cell's runs, and half of its interval."""
    nats = [metrics["nats"] for metrics in found.values()]
    mean = math.exp(np.mean(nats))
    width = noise.mean_half_width(len(nats), _CONFIDENCE) if noise else 0.0
    return mean, mean * math.expm1(width)
