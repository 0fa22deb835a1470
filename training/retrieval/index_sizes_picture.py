"""Quality of indexes drawn against their bytes and their time."""

import dataclasses
import pathlib

from keras_fixedhead import pictures

NATIVE = "native"


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to keep and search embeddings, averaged over collections.

    `reduction` is `"native"`, `"truncate"` or `"pca"`; `search` `"exact"` or
    `"approximate"`. `difference` is that of nDCG@10 to all dimensions, float32,
    exact; `interval` its 95%, by a paired bootstrap of the queries. Times are
    the median of single queries on one thread, and of building the index on
    all threads.
    """

    dimension: int
    reduction: str
    precision: str
    search: str
    ndcg_at_10: float
    difference: float
    interval: tuple[float, float]
    recall_at_100: float
    bytes_per_document: float
    milliseconds_per_query: float
    build_seconds: float


_COLORS = {
    "float32": "#4269d0",
    "int8": "#d9541e",
    "binary": "#2f9e6e",
    "binary_int8": "#8a5bc7",
}
_REDUCTIONS = {  # marker and label
    NATIVE: ("o", "all dimensions"),
    "truncate": ("s", "first dimensions"),
    "pca": ("^", "principal components"),
}


def pareto_front(rows: list[Row]) -> list[Row]:
    """Returns the rows that no smaller one equals or beats, smallest first."""
    front: list[Row] = []
    for row in sorted(
        rows, key=lambda row: (row.bytes_per_document, -row.ndcg_at_10)
    ):
        if not front or row.ndcg_at_10 > front[-1].ndcg_at_10:
            front.append(row)
    return front


def draw_report(
    rows: list[Row], bm25: float, title: str, output: pathlib.Path
) -> None:
    """Draws quality against bytes, and against time.

    The dashed line, `bm25`, is the nDCG@10 of BM25.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator

    figure = pictures.new_figure(13, 6)
    sizes, times = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    front = pareto_front(rows)
    for axis, x in (
        (sizes, "bytes_per_document"),
        (times, "milliseconds_per_query"),
    ):
        axis.axhline(bm25, color="#6b6b6b", linestyle="--", linewidth=1)
        for row in rows:
            color = _COLORS[row.precision]
            axis.plot(
                getattr(row, x),
                row.ndcg_at_10,
                marker=_REDUCTIONS[row.reduction][0],
                markersize=8,
                linestyle="none",
                markeredgecolor=color,
                markerfacecolor=color if row.search == "exact" else "white",
            )
        axis.set_xscale("log")
        axis.grid(color="#e5e5e5")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    sizes.plot(
        [row.bytes_per_document for row in front],
        [row.ndcg_at_10 for row in front],
        color="#b0b0b0",
        linewidth=1.5,
        zorder=1,
    )
    exact = [row for row in rows if row.search == "exact"]
    for row in exact:
        sizes.annotate(
            row.dimension,
            (row.bytes_per_document, row.ndcg_at_10),
            xytext=(0, 8 if row.reduction == "pca" else -16),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=_COLORS[row.precision],
        )
    sizes.annotate(
        "BM25",
        (1, bm25),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color="#6b6b6b",
    )
    ticks = sorted({round(row.bytes_per_document) for row in exact})
    ticks = [
        tick
        for number, tick in enumerate(ticks)
        if not number or tick > 1.25 * ticks[number - 1]
    ]
    sizes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    sizes.minorticks_off()
    sizes.set_xlabel("bytes per document in the index")
    sizes.set_ylabel("nDCG@10")
    times.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    times.xaxis.set_major_formatter("{x:g}")
    times.minorticks_off()
    times.set_xlabel("milliseconds per query, one thread")

    def sample(color, marker, label, fill=True, line="none"):
        return Line2D(
            [],
            [],
            color=color,
            marker=marker,
            markerfacecolor=color if fill else "white",
            linestyle=line,
            label=label,
        )

    used = {row.reduction for row in rows}
    figure.legend(
        handles=[
            *(sample(color, "o", name) for name, color in _COLORS.items()),
            *(
                sample("#6b6b6b", marker, label)
                for name, (marker, label) in _REDUCTIONS.items()
                if name in used
            ),
            sample("#6b6b6b", "o", "approximate search", fill=False),
            sample("#b0b0b0", "", "Pareto front", line="-"),
        ],
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(title, fontsize=11)
    pictures.save_figure(figure, output)
