"""What speaks for a shape, and what against it."""

import dataclasses
import math

from keras_fixedhead import presets
from keras_fixedhead.planner.cost import Cost
from keras_fixedhead.planner.parameters import ParameterCount
from keras_fixedhead.planner.shape import EncoderShape

# From this part of a budget on it is well used.
WELL_USED = 0.9

_LEANER_CAVEAT = (
    "The published variants of 'Leaner Transformers' also widen the embedding "
    "with the heads, 64 for each: with the embedding held fixed, fewer layers "
    "are untested."
)


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A shape with its costs and the reasons to take it or to leave it.

    Attributes:
        cost: a `Cost`; its `shape` is what is suggested.
        budget: int. The parameters that there are to spend, those of both
            pre-training heads included.
        published: str or `None`. The name in `presets.PUBLISHED` of exactly
            this shape.
        reasons_for: tuple of str.
        reasons_against: tuple of str.
    """

    cost: Cost
    budget: int
    published: str | None
    reasons_for: tuple
    reasons_against: tuple

    @classmethod
    def of(cls, shape, sequence_length, budget):
        """Finds the reasons.

        Args:
            shape: an `EncoderShape`.
            sequence_length: int, in tokens.
            budget: int. The parameters that there are to spend.

        Returns:
            A `Suggestion`.

        Raises:
            ValueError: if the sequence length is none.
        """
        cost = Cost.of(shape, sequence_length)
        good, bad = [], []
        for reasons in (_length, _heads, _depth, _index, _figures):
            for speaks_for, sentence in reasons(cost):
                (good if speaks_for else bad).append(sentence)
        share = cost.parameters.total / budget
        used = f"Uses {share:.0%} of the parameters there are to spend."
        (good if share >= WELL_USED else bad).append(used)
        return cls(
            cost=cost,
            budget=budget,
            published=published_name(shape),
            reasons_for=tuple(good),
            reasons_against=tuple(bad),
        )

    @property
    def shape(self):
        """The suggested `EncoderShape`."""
        return self.cost.shape

    @property
    def budget_share(self):
        """The part of the budget that is used, a float, at most 1."""
        return self.cost.parameters.total / self.budget

    @property
    def standard_heads(self):
        """Whether the head size is the embedding size / heads."""
        return has_standard_heads(self.shape)

    def leaner_than(self, deeper):
        """The same, with what speaks for and against it beside another.

        Args:
            deeper: an `EncoderShape` with more layers of fewer heads.

        Returns:
            A `Suggestion`.
        """
        shape = self.shape
        return dataclasses.replace(
            self,
            reasons_for=(
                *self.reasons_for,
                f"{shape.num_heads} heads in {shape.num_layers} layers, not "
                f"{deeper.num_heads} in {deeper.num_layers}: more heads "
                "improve the conditioning of attention, and layers can go "
                "('Leaner Transformers', arXiv 2505.20802).",
            ),
            reasons_against=(*self.reasons_against, _LEANER_CAVEAT),
        )

    def as_dict(self):
        """The suggestion as JSON values."""
        return {
            "budget": self.budget,
            "budget_share": self.budget_share,
            "published": self.published,
            "standard_heads": self.standard_heads,
            "reasons_for": list(self.reasons_for),
            "reasons_against": list(self.reasons_against),
            "cost": self.cost.as_dict(),
        }


def has_standard_heads(shape):
    """Whether every head of a shape has the embedding size / heads."""
    return all(
        size * shape.num_heads == shape.hidden_dim
        for layer in shape.head_sizes
        for size in layer
    )


def published_name(shape):
    """The name in `presets.PUBLISHED` of a shape, or `None`."""
    for name in presets.PUBLISHED:
        if presets.shape(name) == vars(shape):
            return name
    return None


def in_millions(number):
    """A number of parameters to read, such as 193M or 9.7M."""
    return f"{number / 1e6:.{0 if number >= 1e7 else 1}f}M"


def _length(cost):
    length, d = cost.sequence_length, cost.shape.hidden_dim
    if cost.heads_under_length:
        yield (
            False,
            f"Bottlenecked: {cost.heads_under_length} of {cost.heads} heads "
            f"are under the {length} tokens of a sequence (the smallest has "
            f"{cost.smallest_head_size}) and cannot represent every attention "
            "pattern (Theorem 1).",
        )
    if cost.embedding_under_length:
        yield (
            False,
            f"Bottlenecked: the embedding size, {d}, is under the {length} "
            "tokens of a sequence, which no head size makes up for.",
        )
    if not cost.bottlenecked:
        yield (
            True,
            f"No head is under the {length} tokens of a sequence, nor is the "
            "embedding: none is bottlenecked (Theorem 1).",
        )


def _heads(cost):
    shape = cost.shape
    if has_standard_heads(shape):
        yield (
            False,
            "The head size is the embedding size / heads: more heads only "
            "make them smaller (Table 1: MNLI falls from 85.0 to 84.4 from 8 "
            "to 32 heads).",
        )
        return
    smallest, widths = cost.smallest_head_size, shape.attention_widths
    if min(widths) < shape.hidden_dim:
        yield (
            False,
            f"The heads of a layer are together {min(widths)} wide, less than "
            f"the embedding, {shape.hidden_dim}.",
        )
    # Theorem 2 asks for heads that are not larger than the embedding.
    if smallest <= shape.hidden_dim < smallest * shape.num_heads:
        yield (
            True,
            f"{shape.num_heads} heads are more than embedding size / head "
            f"size = {shape.hidden_dim / smallest:.3g}: no layer with as many "
            "standard heads can compute all that such a layer can (Theorem "
            "2).",
        )


def _depth(cost):
    layers = cost.shape.num_layers
    log_3, fit = cost.depth_threshold, cost.fitted_depth_threshold
    both = f"log_3(d) = {log_3:.1f}, and by the later fit {fit:.1f}"
    if fit < log_3:
        both += ", which is not made for so small an embedding"
    source = f"(Levine et al. 2020: {both})."
    some = f"{layers} layer{'s' if layers > 1 else ''}"
    if layers < math.floor(log_3):
        yield (
            False,
            f"{some}: shallower than where depth stops to be efficient "
            f"{source}",
        )
    elif layers <= log_3:
        yield True, f"{some}: as deep as depth is efficient {source}"
    elif layers <= fit:
        yield (
            False,
            f"Mild: {some} are past one threshold of depth and not past the "
            f"other {source}",
        )
    else:
        yield (
            False,
            f"{some}: past both thresholds, from where depth adds little "
            f"{source}",
        )


def _index(cost):
    size = cost.document_bytes["float32"]
    share = size / (4 * presets.shape("bert_large")["hidden_dim"])
    if share < 1:
        yield (
            True,
            f"{size:,} bytes per indexed document in float32, {share:.0%} of "
            "those of BERT_LARGE.",
        )
    else:
        yield (
            False,
            f"{size:,} bytes per indexed document in float32, no fewer than "
            "those of BERT_LARGE.",
        )


def _figures(cost):
    name = published_name(cost.shape)
    if name is not None:
        yield True, f"Measured: {name} has {_figures_of(name)}."
    else:
        name = _nearest(cost)
        near = ""
        if name is not None:
            sizes = presets.shape(name)
            total = ParameterCount.of(EncoderShape(**sizes)).total
            near = (
                f" The nearest that has, {name} ({sizes['num_layers']} "
                f"layers, {sizes['num_heads']} heads, {in_millions(total)}): "
                f"{_figures_of(name)}."
            )
        yield False, f"Unmeasured: the paper has no figures for it.{near}"
    if name in ("fixed_d512_p128_h12", "fixed_d512_p128_h16"):
        yield (
            False,
            "More heads did not help every time: MNLI is 84.2 with 12 heads "
            "and 83.9 with 16 (Table 2A).",
        )


def _figures_of(name):
    labels = {"squad_f1": "SQuAD F1", "squad_em": "EM", "mnli": "MNLI"}
    figures = presets.PUBLISHED[name]
    return ", ".join(f"{labels[key]} {value}" for key, value in figures.items())


def _nearest(cost):
    """The measured shape of the same embedding and heads, by parameters."""
    shape, total = cost.shape, cost.parameters.total
    distances = {}
    for name in presets.PUBLISHED:
        sizes = presets.shape(name)
        if all(sizes[key] == getattr(shape, key) for key in _OF_NEIGHBOURS):
            blocks = {key: sizes[key] for key in _OF_BLOCKS}
            other = dataclasses.replace(shape, **blocks)
            other_total = ParameterCount.of(other).total
            distances[name] = abs(other_total - total) / total
    if not distances or min(distances.values()) > 0.1:
        return None
    return min(distances, key=distances.get)


_OF_NEIGHBOURS = ("hidden_dim", "head_size")
_OF_BLOCKS = ("num_layers", "num_heads", "intermediate_dim")
