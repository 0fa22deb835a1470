"""What a search shows: tables on the terminal, a picture, a file of figures.

Shape letters: Q queries, K documents ranked.
"""

import typing

import numpy as np
import rich.console
import rich.markup
import rich.table

from keras_fixedhead import metrics
from keras_fixedhead.pictures import new_figure, save_figure

FIGURES = {
    "ndcg@10": "nDCG@10",
    "recall@1": "R@1",
    "recall@10": "R@10",
    "mrr@10": "RR@10",
}
_CURVE = (1, 2, 5, 10, 20, 50, 100)
_EXAMPLES = 5
_HITS = 3
_COLORS = {"encoder": "#4269d0", "bm25": "#9c9c9c", "fusion": "#3ca951"}
_LABELS = {"encoder": "encoder", "bm25": "BM25", "fusion": "fusion"}


class Hit(typing.NamedTuple):
    """A document that answers a query.

    Attributes:
        rank: int, from 1.
        id: the document's identifier.
        text: its text.
        score: float, higher is better.
    """

    rank: int
    id: str
    text: str
    score: float


def measure(rankings, relevant):
    """Measures rankings.

    Args:
        rankings: `{system: Ranking}` of the same Q queries.
        relevant: list of Q lists of row numbers.

    Returns:
        `{system: {figure: float}}` for `FIGURES`.
    """
    found = {
        system: metrics.measure_rankings(
            ranking.documents, relevant, FIGURES.values()
        )
        for system, ranking in rankings.items()
    }
    return {
        system: {name: values[FIGURES[name]] for name in FIGURES}
        for system, values in found.items()
    }


def _tidy(text, width=72):
    # Control characters would be obeyed by the terminal.
    line = "".join(c if c.isprintable() else " " for c in text[: 8 * width])
    line = " ".join(line.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _tail(name, width=44):
    return name if len(name) <= width else f"…{name[1 - width :]}"


def print_hits(query, hits, console):
    """Prints the `Hit`s of one query."""
    table = rich.table.Table(
        title=rich.markup.escape(_tidy(query)), title_justify="left"
    )
    if not hits:
        console.print(f"{rich.markup.escape(_tidy(query))}: no document found")
        return
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("document", overflow="fold")
    table.add_column("text")
    for hit in hits:
        table.add_row(
            str(hit.rank),
            f"{hit.score:.4f}",
            rich.markup.escape(_tidy(hit.id)),
            rich.markup.escape(_tidy(hit.text)),
        )
    console.print(table)


def print_examples(rankings, collection):
    """Prints a few queries with the first hits of the first system.

    Beside each stands the rank of its right document for every system.
    """
    system, first = next(iter(rankings.items()))
    table = rich.table.Table(
        title=f"Some queries, hits of {_LABELS[system]} (+ right), rank of "
        "the right",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("query and hits", overflow="fold")
    for system in rankings:
        table.add_column(_LABELS[system], justify="right", no_wrap=True)
    count = min(_EXAMPLES, len(collection.queries))
    for query in np.linspace(0, len(collection.queries) - 1, count, dtype=int):
        right = set(collection.relevant[query])
        lines = [
            f"[bold]{rich.markup.escape(_tidy(collection.queries[query]))}[/]"
        ]
        for row in first.documents[query, :_HITS]:
            if row < 0:
                break
            name = rich.markup.escape(_tail(collection.document_ids[row]))
            lines.append(f"[green]+ {name}[/]" if row in right else f"- {name}")
        ranks = [
            _rank(ranking.documents[query], right)
            for ranking in rankings.values()
        ]
        table.add_row("\n".join(lines), *ranks)
    rich.console.Console().print(table)


def _rank(documents, right):
    """Returns the rank of the first right document, as text."""
    for rank, row in enumerate(documents, 1):
        if row in right:
            return str(rank)
    return f">{len(documents)}"


def print_figures(figures, title):
    """Prints the table of `measure`."""
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column("")
    for name in FIGURES:
        table.add_column(name, justify="right")
    for system, values in figures.items():
        table.add_row(
            _LABELS[system], *(f"{values[name]:.3f}" for name in FIGURES)
        )
    rich.console.Console().print(table)


def draw(path, figures, rankings, relevant, title):
    """Draws the figures as bars, and recall against the depth read.

    Args:
        path: path of the PNG file.
        figures: what `measure` returned.
        rankings: `{system: Ranking}` of the same Q queries.
        relevant: list of Q lists of row numbers.
        title: str, above both.
    """
    picture = new_figure(10, 4)
    bars, curve = picture.subplots(1, 2)
    width = 0.8 / len(figures)
    for index, (system, values) in enumerate(figures.items()):
        drawn = bars.bar(
            np.arange(len(FIGURES)) + index * width,
            [values[name] for name in FIGURES],
            width * 0.92,
            color=_COLORS[system],
            label=_LABELS[system],
        )
        bars.bar_label(drawn, fmt="%.2f", fontsize=8, padding=2)
        depths = [k for k in _CURVE if k <= rankings[system].documents.shape[1]]
        recall = metrics.measure_rankings(
            rankings[system].documents, relevant, [f"R@{k}" for k in depths]
        )
        curve.plot(
            depths,
            list(recall.values()),
            color=_COLORS[system],
            marker="o",
            markersize=4,
            label=_LABELS[system],
        )
    bars.set_xticks(np.arange(len(FIGURES)) + width * (len(figures) - 1) / 2)
    bars.set_xticklabels(FIGURES)
    curve.set_xscale("log")
    curve.set_xticks(_CURVE, [str(k) for k in _CURVE])
    curve.minorticks_off()
    curve.set_xlabel("k, documents read")
    curve.set_ylabel("recall@k")
    for axes in (bars, curve):
        axes.set_ylim(0, 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e5e5")
        axes.set_axisbelow(True)
    picture.legend(
        *bars.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(figures),
        frameon=False,
    )
    picture.suptitle(title)
    save_figure(picture, path)
