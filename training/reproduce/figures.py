"""The paper's figures drawn from our runs, with 95% confidence intervals."""

import math
import pathlib

import numpy as np

from keras_fixedhead import pictures
from training.reproduce.claims import Noise, mean_interval
from training.reproduce.plan import Plan

_CONFIDENCE = 0.95
_PERPLEXITY = "perplexity per word piece"
# Nats of divergence below which the title calls a context reached.
_REACHED = 0.05
_STANDARD = "standard_half standard standard_x2 standard_x4 standard_x8"
_WIDE = "standard wide_x2 wide_x4 wide_x8"
_FIXED = "standard heads_x2 heads_x4 heads_x8"
_SIZES = "standard_x2 heads_x2 sizes_x2 sizes_x4"
_CONTROLS = "heads_x4 flops_x4 deep_x2 broad_x2 deep_x3 broad_x3"
_BLUE, _RED, _GREEN, _PURPLE = pictures.COLORS
# Of each line: its panel, label, colour and cells. `size` is the head size of
# the standard layer, `heads` twice its heads.
_LINES = (
    ("heads", "heads of d / h", _BLUE, _STANDARD),
    ("heads", "heads of d / h, wider feed-forward", _GREEN, _WIDE),
    ("heads", "heads of {size}", _RED, _FIXED),
    ("parameters", "twice d", _BLUE, "standard embedding_x2"),
    (
        "parameters",
        "twice d, heads of {size} (Fig. 4)",
        _PURPLE,
        "standard embedding_heads_x2",
    ),
    ("parameters", "wider feed-forward", _GREEN, _WIDE),
    ("parameters", "more heads of {size}", _RED, _FIXED),
    ("sizes", "{heads} heads", _RED, _SIZES),
    ("sizes", "with the temperature of the largest", _BLUE, "standard_x2_cold"),
    ("sizes", "with the temperature of the smallest", _PURPLE, "sizes_x4_hot"),
    ("controls", "", pictures.GREY, _CONTROLS),
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

    standard = _parts(plan.cells[0].shape)

    def plain_name(cell):
        """Names the parts in which a cell differs from the standard one."""
        parts = [part for part in _parts(cell.shape) if part not in standard]
        return f"{', '.join(parts)}\n{thousands(cell):,.0f}k parameters"

    # Title, label of the x-axis, and x of a cell; y for the controls.
    panels = {
        "heads": (
            "More heads (Table 1, Fig. 3a)",
            "heads per layer",
            lambda cell: cell.shape["num_heads"],
        ),
        "parameters": (
            "For as many parameters (Fig. 1, 3a, 4)",
            "parameters with the embedding (thousands)",
            thousands,
        ),
        "sizes": (
            "Larger heads (Table 2B, Fig. 3b)",
            "head size (dimensions)",
            lambda cell: cell.shape["head_size"],
        ),
        "controls": (
            "Operations, depth and width\n"
            f"(standard: {', '.join(standard[:3])})",
            _PERPLEXITY,
            plain_name,
        ),
    }
    figure = pictures.new_figure(11, 9)
    figure.suptitle(_verdict(metrics, plan.scale.head_size))
    axes = dict(zip(panels, figure.subplots(2, 2).flat))
    for panel, label, color, line in _LINES:
        names = [name for name in line.split() if name in cells]
        if names:
            x = [panels[panel][2](cells[name]) for name in names]
            y, bars = zip(*(_perplexity(metrics[n], noise) for n in names))
            style = {"color": color, "capsize": 3}
            if panel == "controls":
                axes[panel].errorbar(y, x, xerr=bars, fmt="o", **style)
                continue
            label = label.format(
                size=plan.scale.head_size, heads=2 * plan.scale.num_heads
            )
            axes[panel].errorbar(x, y, bars, fmt="o-", label=label, **style)
    for panel, (title, x_label, _) in panels.items():
        powers = panel in ("heads", "sizes")
        y_label = "" if panel == "controls" else _PERPLEXITY
        _finish(axes[panel], title, x_label, y_label, powers)
    axes["controls"].invert_yaxis()
    axes["controls"].tick_params("y", labelsize="small")
    pictures.save_figure(figure, output)
    return True


def _parts(shape):
    """Names what a shape consists of."""
    return [
        "{num_layers} layers".format(**shape),
        "d = {hidden_dim}".format(**shape),
        "{num_heads} heads of {head_size}".format(**shape),
        f"feed-forward of {shape['intermediate_dim'] // shape['hidden_dim']} d",
    ]


def _verdict(metrics, size):
    """Returns what eight times the heads change, once their runs are made."""
    cells = ("heads_x8", "standard_x8", "wide_x8")
    if not all(metrics[name] for name in ("standard", *cells)):
        return "Perplexity by the shape of the encoder"
    base, *others = (
        _perplexity(metrics[name], None)[0] for name in ("standard", *cells)
    )
    fixed, small, wide = (f"{value / base - 1:+.1%}" for value in others)
    return (
        f"Eight times the heads change perplexity by {fixed} with heads of "
        f"{size}, by {small} with heads of d / h,\nand by {wide} with heads "
        "of d / h and as many parameters in the feed-forward"
    )


def draw_contexts(plan: Plan, metrics: dict, output: pathlib.Path) -> bool:
    """Draws what heads of each size miss of synthetic contexts.

    `metrics` are by cell and seed. Returns whether there was anything to draw.
    """
    cells = [cell for cell in plan.context_cells if metrics[cell.name]]
    if not cells:
        return False
    sizes = plan.scale.context_head_sizes
    figure = pictures.new_figure(11, 4.8)
    reached, logits = figure.subplots(1, 2)
    needed = []
    for cell, color in zip(cells, (_RED, _BLUE)):
        runs = metrics[cell.name].values()
        kl, error, bound = (
            [[found[f"{name}_{size}"] for found in runs] for size in sizes]
            for name in ("kl", "log_error", "bound")
        )  # each [head sizes, seeds]
        bars = [0.0] * len(sizes)
        if len(runs) > 1:
            bars = [mean_interval(values, _CONFIDENCE) for values in kl]
        kind = cell.contexts.replace("_", "-")
        style = {"color": color, "label": f"{kind} contexts"}
        means = np.mean(kl, 1)
        reached.errorbar(sizes, means, bars, fmt="o-", capsize=3, **style)
        logits.plot(sizes, np.mean(error, 1), "o-", **style)
        style["label"] += ", lowest error possible"
        logits.plot(sizes, np.mean(bound, 1), "--", **style)
        if least := [s for s, mean in zip(sizes, means) if mean < _REACHED]:
            needed.append(f"{kind} contexts need heads of {least[0]}")
    figure.suptitle(
        f"For {plan.scale.context_length} tokens, {', '.join(needed)} "
        f"(divergence below {_REACHED} nats)"
        if needed
        else "Heads fitted to synthetic contexts"
    )
    reached.set_ylim(bottom=0.0)
    size = "head size (dimensions)"
    divergence = "Kullback-Leibler divergence (nats)"
    _finish(reached, "Divergence that a head reaches", size, divergence, True)
    pictures.use_plain_logs(logits, "y")
    # At n - 1 the bound is 0 except for rounding, which is off this axis.
    logits.set_ylim(bottom=0.05)
    relative = "error relative to the logits' norm"
    _finish(logits, "Error of its logits", size, relative, True)
    pictures.save_figure(figure, output)
    return True


def _finish(axis, title, x_label, y_label, powers):
    axis.set(title=title, xlabel=x_label, ylabel=y_label)
    if powers:
        pictures.use_plain_logs(axis, base=2)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize="small")
    axis.grid(alpha=0.3)


def _perplexity(found, noise):
    """Returns the mean over a cell's runs, and half of its interval."""
    nats = [metrics["nats"] for metrics in found.values()]
    mean = math.exp(np.mean(nats))
    width = noise.mean_half_width(len(nats), _CONFIDENCE) if noise else 0.0
    return mean, mean * math.expm1(width)
