"""The picture of what heads of each size miss of a context."""

from keras_fixedhead.pictures import new_figure, save_figure

# Three of those in Table 2(B) of https://arxiv.org/abs/2002.07028.
PAPER_HEAD_SIZES = (32, 64, 128)

_PANELS = (
    (
        "relative_lowest_error",
        "Lowest error of the logits",
        "error relative to all of the logits",
    ),
    (
        "total_variation",
        "What gradient descent reaches",
        "total variation, mean over tokens",
    ),
)
_PANEL_INCHES = (4.8, 3.8)


def draw_head_sizes(rows, output):
    """Draws what heads miss over their size, a line for each length.

    Args:
        rows: list of dictionaries with `sequence_length`, `head_size`,
            `relative_lowest_error` and `total_variation`, by head size.
        output: `pathlib.Path` of the picture; its ending names the format.

    Raises:
        ModuleNotFoundError: if Matplotlib is not installed.
        OSError: if the picture cannot be written.
        ValueError: if the ending of `output` names no format.
    """
    width, height = _PANEL_INCHES
    figure = new_figure(width * len(_PANELS), height)
    lengths = list(dict.fromkeys(row["sequence_length"] for row in rows))
    sizes = [row["head_size"] for row in rows]
    marked = [x for x in PAPER_HEAD_SIZES if min(sizes) <= x <= max(sizes)]
    axes = figure.subplots(1, len(_PANELS))
    for axis, (name, title, label) in zip(axes, _PANELS):
        for number, length in enumerate(lengths):
            line = [row for row in rows if row["sequence_length"] == length]
            axis.plot(
                [row["head_size"] for row in line],
                [row[name] for row in line],
                color=f"C{number}",
                marker="o",
                markersize=3.5,
                label=f"{length} tokens",
                zorder=3,
            )
        for number, size in enumerate(marked):
            axis.axvline(
                size,
                color="0.4",
                linestyle=":",
                linewidth=1.2,
                label="_" * bool(number) + "the paper's head sizes",
            )
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.set_ylim(bottom=0.0)
        axis.set_title(title)
        axis.set_xlabel("head size")
        axis.set_ylabel(label)
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(lengths) + 1,
        frameon=False,
    )
    save_figure(figure, output)
