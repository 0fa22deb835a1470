"""What the attention heads of a model do, as data and as a table.

Shape letters: T query length, S key length, N heads, H head size.
"""

import dataclasses
import io

import numpy as np
import rich.box
import rich.console
import rich.table

_TABLE_WIDTH = 80


@dataclasses.dataclass(frozen=True)
class HeadReport:
    """What one head does: means over the sequences, but for the last figure.

    Attributes:
        layer: int. The number of the attention layer in the order of
            computation, from 0.
        head: int. The number of the head in it, from 0.
        head_size: int.
        mean_length: float. The real tokens of a sequence.
        longest_length: int. Those of the longest.
        bottleneck: bool. Whether the head is smaller than the longest
            sequence, and so cannot represent every attention pattern of it
            (Theorem 1 of https://arxiv.org/abs/2002.07028).
        logit_rank: float. The numerical rank of the logits `[T, S]`, at most
            `min(head_size, T, S)`.
        logit_effective_rank: float. Their effective rank: the exponential
            of the entropy of the singular values, divided by their sum (Roy
            & Vetterli 2007, "The effective rank: a measure of effective
            dimensionality").
        attention_rank: float. The numerical rank of the attention scores
            `[T, S]`, which the softmax makes larger.
        attention_effective_rank: float. Their effective rank.
        entropy: float, nats. The entropy of a row of the scores, 0 where a
            token attends to one token, `log(S)` where to all alike.
        condition_number: float. The median condition number (largest singular
            value by smallest) of the head's output `[T, H]`, the scores times
            the values; `inf` where it has not full rank.
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

    Attributes:
        layer: int. The number of the attention layer in the order of
            computation, from 0.
        name: str. The layer's path in the model.
        num_heads: int.
        condition_number: float. The median condition number of the outputs of
            all heads side by side `[T, N * H]`, what `attention_output`
            projects: the matrix of Theorem 3.2 of "Leaner Transformers: More
            Heads, Less Depth" (https://arxiv.org/abs/2505.20802), which more
            heads condition better. `inf` where it has not full rank.
    """

    layer: int
    name: str
    num_heads: int
    condition_number: float


@dataclasses.dataclass(frozen=True)
class AttentionReport:
    """What the heads of a model do. Printed, a table of its layers.

    Attributes:
        heads: tuple of `HeadReport`, by layer and head.
        layers: tuple of `LayerReport`.
        sequences: int. The sequences that were looked at.
        left_out: tuple of str, the paths of the model's attention layers that
            were not: they attend in a way of their own, over other axes than
            the sequence, in a loop, or not for the model's outputs.
    """

    heads: tuple[HeadReport, ...]
    layers: tuple[LayerReport, ...]
    sequences: int
    left_out: tuple[str, ...]

    def rows(self):
        """The reports of the heads as a list of dictionaries."""
        return [dataclasses.asdict(head) for head in self.heads]

    def heads_of(self, layer):
        """The reports of the heads of a layer, by its number."""
        return [head for head in self.heads if head.layer == layer]

    @property
    def summary(self):
        """What was looked at, and how many heads are too small, in words."""
        small = sum(head.bottleneck for head in self.heads)
        longest = max(head.longest_length for head in self.heads)
        if not small:
            found = f"No head of {len(self.heads)} is"
        elif small == len(self.heads):
            found = f"All {small} heads are"
        else:
            found = f"{small} of {len(self.heads)} heads are"
        left_out = len(self.left_out)
        return (
            f"{self.sequences} sequences of {self.heads[0].mean_length:.1f} "
            f"tokens, the longest of {longest}.\n{found} smaller than that"
            f"{': a low-rank bottleneck' if small else ''}."
            + (f"\nAttention layers left out: {left_out}." if left_out else "")
        )

    def __rich__(self):
        table = rich.table.Table(
            title=self.summary,
            caption="Means over the heads of a layer; effective ranks in "
            "parentheses. Condition numbers are those of all heads side by "
            "side." + "".join(f"\nLeft out: {path}" for path in self.left_out),
            box=rich.box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title_justify="left",
            caption_justify="left",
        )
        for name in (
            "layer",
            "heads",
            "head\nsize",
            "bottle-\nneck",
            "rank of\nlogits",
            "rank of\nattention",
            "entropy",
            "condition\nnumber",
        ):
            table.add_column(name, justify="right", no_wrap=True)
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
                f"{np.mean([head.entropy for head in heads]):.2f}",
                f"{layer.condition_number:,.0f}",
            )
        return table

    def __str__(self):
        console = rich.console.Console(file=io.StringIO(), width=_TABLE_WIDTH)
        console.print(self)
        return console.file.getvalue()


def _ranks(heads, name):
    rank, effective = (
        np.mean([getattr(head, f"{name}{kind}") for head in heads])
        for kind in ("_rank", "_effective_rank")
    )
    return f"{rank:.1f} ({effective:.1f})"
