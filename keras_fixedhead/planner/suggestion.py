"""A suggested shape, with the reasons for and against it."""

import dataclasses
import math

from keras_fixedhead import presets
from keras_fixedhead.planner.cost import Cost, EncoderShape, ParameterCount

# From this fraction on a budget is well used.
WELL_USED = 0.9


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """A shape with its costs and the reasons for and against it.

    `cost.shape` is what is suggested, `published` its name in
    `presets.PUBLISHED`. The `budget` includes both pre-training heads.
    """

    cost: Cost
    budget: int
    published: str | None
    reasons_for: tuple[str, ...]
    reasons_against: tuple[str, ...]

    @classmethod
    def of(
        cls, shape: EncoderShape, sequence_length: int, budget: int
    ) -> "Suggestion":
        cost = Cost.of(shape, sequence_length)
        good: list[str] = []
        bad: list[str] = []
        for add_reasons in (_length, _heads, _depth, _index, _published):
            add_reasons(cost, good, bad)
        share = cost.parameters.total / budget
        used = f"Uses {share:.0%} of the parameters there are to spend."
        (good if share >= WELL_USED else bad).append(used)
        return cls(cost, budget, _name(shape), tuple(good), tuple(bad))

    @property
    def shape(self) -> EncoderShape:
        return self.cost.shape

    @property
    def budget_share(self) -> float:
        return self.cost.parameters.total / self.budget

    def leaner_than(self, deeper: EncoderShape) -> "Suggestion":
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
            reasons_against=(
                *self.reasons_against,
                "The published variants of 'Leaner Transformers' also widen "
                "the embedding with the heads, 64 for each: with the "
                "embedding held fixed, fewer layers are untested.",
            ),
        )

    def as_dict(self) -> dict:
        return {
            **vars(self),
            "budget_share": self.budget_share,
            "standard_heads": self.shape.standard_heads,
            "cost": self.cost.as_dict(),
        }


def in_millions(number: int) -> str:
    """A number of parameters to read, such as 193M or 9.7M."""
    return f"{number / 1e6:.{0 if number >= 1e7 else 1}f}M"


def _name(shape):
    for name in presets.PUBLISHED:
        if presets.shape(name) == vars(shape):
            return name
    return None


def _length(cost, good, bad):
    length, d = cost.sequence_length, cost.shape.hidden_dim
    if cost.heads_under_length:
        bad.append(
            f"Bottlenecked: {cost.heads_under_length} of {cost.heads} heads "
            f"are under the {length} tokens of a sequence (the smallest has "
            f"{cost.smallest_head_size}) and cannot represent every attention "
            "pattern (Theorem 1)."
        )
    if cost.embedding_under_length:
        bad.append(
            f"Bottlenecked: the embedding size, {d}, is under the {length} "
            "tokens of a sequence, which no head size makes up for."
        )
    if not cost.bottlenecked:
        good.append(
            f"No head is under the {length} tokens of a sequence, nor is the "
            "embedding: none is bottlenecked (Theorem 1)."
        )


def _heads(cost, good, bad):
    shape = cost.shape
    if shape.standard_heads:
        bad.append(
            "The head size is the embedding size / heads: more heads only "
            "make them smaller (Table 1: MNLI falls from 85.0 to 84.4 from 8 "
            "to 32 heads)."
        )
        return
    smallest, narrowest = cost.smallest_head_size, min(shape.attention_widths)
    if narrowest < shape.hidden_dim:
        bad.append(
            f"The heads of a layer are together {narrowest} wide, less than "
            f"the embedding, {shape.hidden_dim}."
        )
    # Theorem 2 is about heads that are not larger than the embedding.
    if smallest <= shape.hidden_dim < smallest * shape.num_heads:
        good.append(
            f"{shape.num_heads} heads are more than embedding size / head "
            f"size = {shape.hidden_dim / smallest:.3g}: no layer with as many "
            "standard heads can compute all that such a layer can (Theorem "
            "2)."
        )


def _depth(cost, good, bad):
    layers = cost.shape.num_layers
    log_3, fit = cost.depth_threshold, cost.fitted_depth_threshold
    both = f"log_3(d) = {log_3:.1f}, and by the later fit {fit:.1f}"
    if fit < log_3:
        both += ", which is not made for so small an embedding"
    source = f"(Levine et al. 2020: {both})."
    some = f"{layers} layer{'s' if layers > 1 else ''}"
    reasons = bad
    if math.floor(log_3) <= layers <= log_3:
        reasons, depth = good, f"{some}: as deep as depth is efficient"
    elif layers < log_3:
        depth = f"{some}: shallower than where depth stops to be efficient"
    elif layers <= fit:
        depth = (
            f"Mild: {some} are past one threshold of depth and not past the "
            "other"
        )
    else:
        depth = f"{some}: past both thresholds, from where depth adds little"
    reasons.append(f"{depth} {source}")


def _index(cost, good, bad):
    size = cost.document_bytes["float32"]
    share = size / (4 * presets.shape("bert_large")["hidden_dim"])
    reason = f"{size:,} bytes per indexed document in float32, "
    if share < 1:
        good.append(f"{reason}{share:.0%} of those of BERT_LARGE.")
    else:
        bad.append(f"{reason}no fewer than those of BERT_LARGE.")


def _published(cost, good, bad):
    name = _name(cost.shape)
    if name is not None:
        good.append(f"Measured: {name} has {_results(name)}.")
    else:
        reason = "Unmeasured: the paper has no figures for it."
        name = _nearest(cost)
        if name is not None:
            sizes = presets.shape(name)
            total = ParameterCount.of(EncoderShape(**sizes)).total
            reason += (
                f" The nearest that has, {name} ({sizes['num_layers']} "
                f"layers, {sizes['num_heads']} heads, {in_millions(total)}): "
                f"{_results(name)}."
            )
        bad.append(reason)
    if name in ("fixed_d512_p128_h12", "fixed_d512_p128_h16"):
        bad.append(
            "More heads did not help every time: MNLI is 84.2 with 12 heads "
            "and 83.9 with 16 (Table 2A)."
        )


def _results(name):
    labels = {"squad_f1": "SQuAD F1", "squad_em": "EM", "mnli": "MNLI"}
    return ", ".join(
        f"{labels[key]} {value}"
        for key, value in presets.PUBLISHED[name].items()
    )


def _nearest(cost):
    """The published shape of equal embedding and heads, by parameters."""
    shape, total = cost.shape, cost.parameters.total
    blocks = ("num_layers", "num_heads", "intermediate_dim")
    distances = {}
    for name in presets.PUBLISHED:
        other = presets.shape(name)
        alike = dataclasses.replace(shape, **{x: other[x] for x in blocks})
        difference = abs(ParameterCount.of(alike).total - total)
        sizes = other["hidden_dim"], other["head_size"]
        same = sizes == (shape.hidden_dim, shape.head_size)
        if same and difference / total <= 0.1:
            distances[name] = difference
    return min(distances, key=distances.__getitem__, default=None)
