"""Scales (for two cores, a GPU, and the paper's) and the shapes to train.

A cell is named by what it has more of than the standard layer, `standard`, in
which d = h x head size. Names and claims are the same at each scale.
"""

import dataclasses

from keras_fixedhead.planner import EncoderShape, ParameterCount, encoder_flops


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes that all cells of a grid share."""

    num_layers: int
    hidden_dim: int
    """The embedding size d."""
    intermediate_dim: int
    num_heads: int
    """Heads of the standard layer that the grid varies; divides d."""
    sequence_length: int
    batch_size: int
    """Sequences of an update."""
    rates: tuple[float, ...]
    """Peaks of the learning rate to choose from."""
    dropout: float = 0.0
    steps: int = 2400
    """Updates of a run."""
    # With a tenth of the updates as warmup, these post-norm models learn
    # nothing at the rate next to the best.
    warmup_steps: int = 720
    decay: str = "cosine"
    """`cosine`, to 0, or `rsqrt`, with the square root of the step."""
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    parts: int = 1
    """Batches that an update is computed in, one after the other."""
    seeds: int = 3
    """Runs of each cell."""
    dtype: str = "float32"
    context_length: int = 64
    """n of the synthetic contexts."""
    context_steps: int = 1000
    """Updates of a head that is fitted to a context."""

    @property
    def head_size(self) -> int:
        """The head size of the standard layer, d / h."""
        return self.hidden_dim // self.num_heads

    @property
    def context_head_sizes(self) -> list[int]:
        """Head sizes fitted to contexts: powers of 2 under n, and n - 1."""
        length = self.context_length
        powers = [2**i for i in range(1, length.bit_length())]
        return [*(size for size in powers if size < length - 1), length - 1]


SCALES = {
    # About three hours on two cores.
    "cpu": Scale(
        num_layers=2,
        hidden_dim=64,
        intermediate_dim=256,
        num_heads=4,
        sequence_length=64,
        batch_size=32,
        rates=(2.83e-3, 4e-3, 5.66e-3, 8e-3),
    ),
    # The shapes of the paper's language model, with fewer updates.
    "gpu": Scale(
        num_layers=6,
        hidden_dim=256,
        intermediate_dim=1024,
        num_heads=8,
        sequence_length=256,
        batch_size=64,
        rates=(5e-4, 1e-3, 2e-3, 4e-3),
        dtype="mixed_bfloat16",
        context_length=128,
    ),
}
# Section 4.1 and Fig. 3 of https://arxiv.org/abs/2002.07028. Its learning rate
# of 0.1 is taken to be divided by the root of the step: the peak is
# 0.1 / sqrt(10,000).
SCALES["paper"] = dataclasses.replace(
    SCALES["gpu"],
    dropout=0.1,
    steps=250_000,
    batch_size=4096,
    warmup_steps=10_000,
    decay="rsqrt",
    rates=(1e-3,),
    clip_norm=None,
    parts=64,
    dtype="float32",
    context_length=256,
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A shape to train (arguments of `FixedHeadBackbone`), or a context to fit.

    `contexts` is `dense` or `one_hot`; it is empty for language models.
    """

    name: str
    why: str
    shape: dict = dataclasses.field(default_factory=dict)
    contexts: str = ""

    @property
    def width(self) -> int:
        """The size of all heads of a layer together."""
        return self.shape["num_heads"] * self.shape["head_size"]


def encoder_shape(
    cell: Cell, scale: Scale, vocabulary_size: int
) -> EncoderShape:
    """The shape of a cell's language model, to compute its cost."""
    shape = {k: v for k, v in cell.shape.items() if k != "attention_scale"}
    return EncoderShape(
        vocabulary_size=vocabulary_size,
        max_sequence_length=scale.sequence_length,
        num_segments=1,
        dropout=scale.dropout,
        **shape,
    )


def grid(scale: Scale) -> list[Cell]:
    """The cells of a scale in the order of training."""
    d, heads, size = scale.hidden_dim, scale.num_heads, scale.head_size
    base = {
        "num_layers": scale.num_layers,
        "num_heads": heads,
        "hidden_dim": d,
        "intermediate_dim": scale.intermediate_dim,
        "head_size": size,
    }

    def cell(name, why, **changes):
        return Cell(name, why, {**base, **changes})

    def standard(factor):
        number = int(heads * factor)
        return {"num_heads": number, "head_size": d // number}

    def fixed(factor):
        why = "Fig. 3a, Table 2A: more heads of one size"
        return cell(f"heads_x{factor}", why, num_heads=heads * factor)

    def wide(factor):
        return cell(
            f"wide_x{factor}",
            f"Fig. 3a: standard_x{factor} with a feed-forward that makes its "
            f"parameters those of heads_x{factor}",
            **standard(factor),
            intermediate_dim=_same(
                _parameters, scale, fixed(factor), standard(factor)
            ),
        )

    def deep(factor, why):
        layers = factor * scale.num_layers
        return cell(f"deep_x{factor}", why, num_layers=layers)

    def broad(factor):
        # Only nearly as large, since heads are whole.
        number = round(heads * factor**0.5)
        width = round(d * factor**0.5 / number) * number
        return cell(
            f"broad_x{factor}",
            f"width: the parameters of deep_x{factor}'s layers in as many "
            "as standard has",
            hidden_dim=width,
            num_heads=number,
            head_size=width // number,
            intermediate_dim=scale.intermediate_dim * width // d,
        )

    larger = "Fig. 3b, Table 2B: larger heads, as many as in standard_x2"
    small, large = size // 2, size * 4
    return [
        cell("standard", "Table 1, Fig. 1, 3a: head size d / h"),
        cell("standard_x2", "Table 1: twice the heads", **standard(2)),
        cell("standard_x8", "Table 1: eight times the heads", **standard(8)),
        *map(fixed, (2, 4, 8)),
        cell("sizes_x4", larger, num_heads=2 * heads, head_size=large),
        cell("standard_x4", "Table 1: four times the heads", **standard(4)),
        cell("sizes_x2", larger, num_heads=2 * heads, head_size=2 * size),
        *map(wide, (2, 4, 8)),
        cell(
            "embedding_x2",
            "Fig. 1: the standard layer with twice the embedding",
            hidden_dim=2 * d,
            head_size=2 * size,
        ),
        cell(
            "embedding_heads_x2",
            "Fig. 4: twice the embedding, with heads of one size",
            hidden_dim=2 * d,
            num_heads=2 * heads,
        ),
        Cell("contexts_dense", "Theorem 1: random contexts", {}, "dense"),
        Cell("contexts_one_hot", "control: one token each", {}, "one_hot"),
        cell(
            "sizes_x4_hot",
            f"control: sizes_x4 with the temperature of heads of {small}",
            num_heads=2 * heads,
            head_size=large,
            attention_scale=small**-0.5,
        ),
        cell(
            "standard_x2_cold",
            f"control: standard_x2 with the temperature of heads of {large}",
            **standard(2),
            attention_scale=large**-0.5,
        ),
        cell(
            "flops_x4",
            "control: standard, with a feed-forward that makes its operations "
            "those of heads_x4",
            intermediate_dim=_same(_flops, scale, fixed(4), standard(1)),
        ),
        deep(2, "'Leaner', depth: twice the layers, heads_x4's parameters"),
        broad(2),
        deep(3, "depth: three times the layers"),
        broad(3),
        cell("standard_half", "Table 1: half the heads", **standard(0.5)),
    ]


def _parameters(shape):
    return ParameterCount.of(shape).encoder


def _flops(shape):
    return encoder_flops(shape, shape.max_sequence_length)


def _same(cost, scale, other, changes):
    """The feed-forward width at which a layer costs the same, rounded down."""

    def of(**changed):
        changed = Cell("", "", {**other.shape, **changed})
        # The vocabulary is the same for all cells.
        return cost(encoder_shape(changed, scale, vocabulary_size=1))

    one, two = (of(**changes, intermediate_dim=width) for width in (1, 2))
    # The cost is linear in the width.
    return 1 + (of() - one) // (two - one)
