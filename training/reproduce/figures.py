"""The paper's figures drawn from our runs, with intervals."""

import math
import pathlib

import numpy as np

from keras_fixedhead.pictures import new_figure, save_figure
from training.reproduce.claims import Noise, mean_interval
from training.reproduce.plan import Plan

_CONFIDENCE = 0.95
_STANDARD, _FIXED, _WIDE, _OTHER = "#4269d0", "#d9541e", "#6f8f3f", "#8a5ab0"
_POINTS = {"marker": "o", "markersize": 4}


def draw_language(
    plan: Plan, metrics: dict, noise: Noise | None, output: pathlib.Path
) -> bool:
    """Draws Table 1 with Fig. 3a, Fig. 1, Fig. 3b and the controls.

    Points are means over seeds of `metrics`, by cell and seed. Bars are 95%
    confidence intervals, once the noise is known. Returns whether there was
    anything to draw.
    """
    cells = {c.name: c for c in plan.language_cells if metrics[c.name]}
    if not cells:
        return False
    figure = new_figure(11, 8)
    heads, parameters, sizes, controls = figure.subplots(2, 2).flat
    d, h = plan.scale.hidden_dim, plan.scale.num_heads

    def points(names):
        """Returns the cells' mean perplexities and the lengths of bars."""
        return zip(*(_perplexity(metrics[name], noise) for name in names))

    def thousands(name):
        first = next(iter(metrics[name].values()))
        return first["parameters"] / 1000

    standard = "standard_half standard standard_x2 standard_x4 standard_x8"
    fixed = "standard heads_x2 heads_x4 heads_x8"
    wide = "standard wide_x2 wide_x4 wide_x8"
    embedding = "standard embedding_x2"
    grown = "standard embedding_heads_x2"
    larger = "standard_x2 heads_x2 sizes_x2 sizes_x4"
    of_one_size = f"heads of {plan.scale.head_size}"
    temperature = "with the temperature of the"
    for axis, line, color, label in (
        (heads, standard, _STANDARD, "head size d / h"),
        (heads, wide, _WIDE, "d / h, feed-forward widened to match"),
        (heads, fixed, _FIXED, of_one_size),
        (parameters, embedding, _STANDARD, f"d from {d} to {2 * d}"),
        (parameters, grown, _OTHER, f"the same with {of_one_size} (Fig. 4)"),
        (parameters, wide, _WIDE, f"d = {d}, wider feed-forward"),
        (parameters, fixed, _FIXED, f"d = {d}, more heads"),
        (sizes, larger, _FIXED, f"{2 * h} heads"),
        (sizes, "standard_x2_cold", _STANDARD, f"{temperature} largest"),
        (sizes, "sizes_x4_hot", _OTHER, f"{temperature} smallest"),
    ):
        names = [name for name in line.split() if name in cells]
        if not names:
            continue
        if axis is parameters:
            x = [thousands(name) for name in names]
        else:
            field = "num_heads" if axis is heads else "head_size"
            x = [cells[name].shape[field] for name in names]
        means, bars = points(names)
        axis.errorbar(
            x, means, bars, color=color, label=label, capsize=3, **_POINTS
        )

    named = "heads_x4 flops_x4 deep_x2 broad_x2 deep_x3 broad_x3".split()
    named = [name for name in named if name in cells]
    if named:
        means, bars = points(named)
        controls.errorbar(
            means, range(len(named)), xerr=bars, fmt="o", color="0.2", capsize=3
        )
    controls.set_yticks(
        range(len(named)),
        [f"{name}, {thousands(name):,.0f}k" for name in named],
    )
    controls.invert_yaxis()
    perplexity = "perplexity of a word piece"
    count = "parameters with the embedding, thousands"
    for axis, title, x_label, y_label in (
        (heads, "More heads (Table 1, Fig. 3a)", "heads", perplexity),
        (
            parameters,
            "For as many parameters (Fig. 1, 3a, 4)",
            count,
            perplexity,
        ),
        (sizes, "Larger heads (Table 2B, Fig. 3b)", "head size", perplexity),
        (controls, "Operations, depth and width; parameters", perplexity, ""),
    ):
        _finish(axis, title, x_label, y_label, powers=axis in (heads, sizes))
    save_figure(figure, output)
    return True


def draw_contexts(plan: Plan, metrics: dict, output: pathlib.Path) -> bool:
    """Draws what heads of each size miss of synthetic contexts.

    On the left the divergence that is reached, on the right the error of the
    logits beside its bound. `metrics` are by cell and seed. Returns whether
    there was anything to draw.
    """
    cells = [cell for cell in plan.context_cells if metrics[cell.name]]
    if not cells:
        return False
    sizes = plan.scale.context_head_sizes
    figure = new_figure(11, 4)
    reached, logits = figure.subplots(1, 2)
    for cell, color in zip(cells, (_FIXED, _STANDARD)):
        found = list(metrics[cell.name].values())
        kind = cell.contexts.replace("_", "-")

        def values(name, found=found):
            """The metric as a list `[head sizes, seeds]`."""
            return [[f[f"{name}_{size}"] for f in found] for size in sizes]

        # A single seed has no interval.
        widths = [mean_interval(x, _CONFIDENCE) for x in values("kl")]
        bars = [width if math.isfinite(width) else 0.0 for width in widths]
        style = {"color": color, **_POINTS}
        kl, error, bound = (
            np.mean(values(name), axis=1)
            for name in ("kl", "log_error", "bound")
        )
        reached.errorbar(sizes, kl, bars, label=kind, capsize=3, **style)
        logits.plot(sizes, error, label=f"{kind}, reached", **style)
        logits.plot(
            sizes,
            bound,
            color=color,
            linestyle="--",
            label=f"{kind}, bound of theory.lowest_error",
        )
    reached.set_ylim(bottom=0.0)
    # At n - 1 the bound is 0 except for rounding, which is off this axis.
    logits.set_yscale("log")
    logits.set_ylim(bottom=0.05)
    for axis, title, y_label in (
        (
            reached,
            "Divergence that a head reaches",
            "Kullback-Leibler divergence, nats",
        ),
        (
            logits,
            "Error of its logits, and the least there can be",
            "relative to all of the logits",
        ),
    ):
        _finish(axis, title, "head size", y_label, powers=True)
    save_figure(figure, output)
    return True


def _finish(axis, title, x_label, y_label, powers):
    axis.set_title(title)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    if powers:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize="small")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _perplexity(found, noise):
    """Returns the mean over a cell's runs, and half of its interval."""
    nats = [metrics["nats"] for metrics in found.values()]
    mean = math.exp(np.mean(nats))
    if noise is None:
        return mean, 0.0
    width = noise.mean_half_width(len(nats), _CONFIDENCE)
    return mean, mean * math.expm1(width)
