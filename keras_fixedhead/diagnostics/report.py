"""What the heads of a model do, as data, as a table and as a picture.

Shape letters: T query length, S key length, N heads, H head size.
"""

import dataclasses
import io
import os
import typing
from collections.abc import Sequence

import numpy as np
import rich.box
import rich.console
import rich.table

from keras_fixedhead.pictures import GREY, new_figure, save_figure

if typing.TYPE_CHECKING:
    import matplotlib.figure

# The metrics of a head, all but the last as means over sequences.
METRICS = (
    "logit_rank",
    "logit_effective_rank",
    "attention_rank",
    "attention_effective_rank",
    "entropy",
    "condition_number",
)
# What is drawn, with its title and unit.
_PANELS = (
    ("logit_effective_rank", "Effective rank of the logits", "dimensions"),
    (
        "attention_effective_rank",
        "Effective rank of the attention",
        "dimensions",
    ),
    ("entropy", "Entropy of the attention", "nats"),
    ("condition_number", "Condition number of the output", "log10"),
)


@dataclasses.dataclass(frozen=True)
class HeadReport:
    """What one head does: means over the sequences, but for the last number.

    Attributes:
        layer, head: numbers from 0; layers are in the order of computation.
        mean_length, longest_length: the real tokens of a sequence.
        bottleneck: whether the head is smaller than the longest sequence.
        logit_rank: the numerical rank of the logits `[T, S]`.
        logit_effective_rank: the exponential of the entropy of the normalized
            singular values (Roy & Vetterli 2007, "The effective rank").
        attention_rank, attention_effective_rank: of the attention scores.
        entropy: of a row of the scores, in nats, from 0 (one token) to
            `log(S)` (all alike).
        condition_number: the median over sequences of the condition number of
            the head's output `[T, H]`; `inf` where that lacks full rank.
    """

    layer: int
    head: int
    head_size: int
    mean_length: float
    longest_length: int
    bottleneck: bool
    logit_rank: float
    logit_effective_rank: float
    attention_rank: float
    attention_effective_rank: float
    entropy: float
    condition_number: float


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """What the heads of a layer do together.

    `condition_number` is that of the outputs of all heads side by side, which
    more heads improve ("Leaner Transformers", arXiv 2505.20802).
    """

    layer: int
    name: str
    num_heads: int
    condition_number: float


@dataclasses.dataclass(frozen=True)
class AttentionReport:
    """What the heads of a model do. Printed, a table of its layers.

    `sequences` is their number. `left_out` are the paths of attention layers
    that attend in a way of their own, over other axes than the sequence, in a
    loop, or were not called.
    """

    heads: tuple[HeadReport, ...]
    layers: tuple[LayerReport, ...]
    sequences: int
    left_out: tuple[str, ...]

    def rows(self) -> list[dict]:
        return [dataclasses.asdict(head) for head in self.heads]

    def heads_of(self, layer: int) -> list[HeadReport]:
        return [head for head in self.heads if head.layer == layer]

    @property
    def summary(self) -> str:
        small = sum(head.bottleneck for head in self.heads)
        some = "All" if small == len(self.heads) else f"{small} of"
        text = (
            f"{self.sequences} sequences of {self.heads[0].mean_length:.1f} "
            "tokens, the longest of "
            f"{max(head.longest_length for head in self.heads)}.\n"
            f"{some} {len(self.heads)} heads are smaller than that"
            f"{': a low-rank bottleneck' if small else ''}."
        )
        if self.left_out:
            text += f"\nAttention layers left out: {len(self.left_out)}."
        return text

    def __rich__(self) -> rich.table.Table:
        names = (
            "layer,heads,head\nsize,bottle-\nneck,rank of\nlogits,"
            "rank of\nattention,entropy,condition\nnumber"
        ).split(",")
        table = rich.table.Table(
            *(
                rich.table.Column(x, justify="right", no_wrap=True)
                for x in names
            ),
            title=self.summary,
            caption="Means over the heads of a layer; effective ranks in "
            "parentheses. Condition numbers are those of all heads side by "
            "side." + "".join(f"\nLeft out: {path}" for path in self.left_out),
            box=rich.box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title_justify="left",
            caption_justify="left",
        )
        for layer in self.layers:
            heads = self.heads_of(layer.layer)
            sizes = sorted({head.head_size for head in heads})
            small = sum(head.bottleneck for head in heads)
            table.add_row(
                str(layer.layer),
                str(layer.num_heads),
                "-".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))),
                {0: "no", len(heads): "yes"}.get(small, f"{small} heads"),
                _ranks(heads, "logit"),
                _ranks(heads, "attention"),
                f"{mean(heads, 'entropy'):.2f}",
                f"{layer.condition_number:,.0f}",
            )
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        # In a notebook, rich would display the table and leave the text empty.
        console = rich.console.Console(file=text, width=80, force_jupyter=False)
        console.print(self)
        return text.getvalue()


def mean(heads: Sequence[HeadReport], name: str) -> float:
    return float(np.mean([getattr(head, name) for head in heads]))


def _ranks(heads, name):
    rank = mean(heads, f"{name}_rank")
    effective_rank = mean(heads, f"{name}_effective_rank")
    return f"{rank:.1f} ({effective_rank:.1f})"


def draw_attention_report(
    report: AttentionReport, output: str | os.PathLike
) -> None:
    """Writes `attention_figure`, in the format of the suffix of `output`."""
    save_figure(attention_figure(report), output)


def attention_figure(report: AttentionReport) -> "matplotlib.figure.Figure":
    """Draws four numbers of each head; small heads are marked with a cross.

    Needs Matplotlib.
    """
    layers = len(report.layers)
    heads = max(layer.num_heads for layer in report.layers)
    figure = new_figure(
        max(0.64 * heads + 3.2, 9.0), max(0.64 * layers + 3.2, 6.0)
    )
    small = [(x.head, x.layer) for x in report.heads if x.bottleneck]
    crossed = 0 < len(small) < len(report.heads)
    note = " Crosses mark them." if crossed else ""
    figure.suptitle(report.summary + note, wrap=True)
    panels = zip(figure.subplots(2, 2).flat, _PANELS)
    for axis, (name, title, unit) in panels:
        values = np.full((layers, heads), np.nan)
        for head in report.heads:
            values[head.layer, head.head] = getattr(head, name)
        if name == "condition_number":
            with np.errstate(invalid="ignore"):
                values = np.log10(np.where(np.isinf(values), np.nan, values))
        axis.set(title=title, xlabel="head", ylabel="layer")
        axis.locator_params(integer=True, nbins=16)
        axis.set_facecolor(GREY)  # not a head, or a rank deficit
        image = axis.imshow(values, aspect="auto")
        figure.colorbar(image, ax=axis, label=unit)
        if crossed:
            # The edge shows on light cells.
            axis.scatter(
                *zip(*small), marker="X", color="white", edgecolor="black"
            )
    return figure
