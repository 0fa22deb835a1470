"""The search for shapes that use a budget of parameters.

Letters: d embedding size, p head size, h heads, L layers.
"""

import bisect
import dataclasses
import math

from keras_fixedhead import presets
from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.planner.cost import (
    EncoderShape,
    ParameterCount,
    Shaped,
)
from keras_fixedhead.planner.suggestion import WELL_USED, Suggestion
from keras_fixedhead.theory import depth_threshold, fitted_depth_threshold

_EMBEDDING_DIMS = [128, 192, 256, 384, 512, 768, 1024]
# The paper measured nothing beyond these three.
_DEEPEST = 24
_WIDEST_HEADS = 4096  # all heads of a layer together
_WIDEST = 8  # times the embedding size; heads, or the feed-forward
_SMALLEST_HEAD = 32
_LEANER_DEPTH = 0.6  # of the layers, kept by `leaner`
# BERT's, for the shapes with standard heads.
_STANDARD_HEAD = 64
_FEED_FORWARD = 4  # times the embedding size


def suggest(
    parameters: int,
    sequence_length: int,
    embedding_dim: int | None = None,
    vocabulary_size: int = 30522,
    max_sequence_length: int = 512,
    pooler: bool = True,
    count: int = 5,
) -> list[Suggestion]:
    """Ranks shapes for a budget, with the reasons for and against each.

    Shapes without a bottleneck (no head, nor the embedding, under the
    sequence length) come first, then shapes of the paper's tables, the only
    ones with published results. Among the others come first those that use
    nine tenths of the budget, then those whose depth is from log_3(d), rounded
    down, to the later fit, then the smaller embedding, for the index, then
    larger heads, then more heads before more layers.

    The candidates are the paper's shapes that use the budget well; for each
    embedding size two with heads as large as the sequence is long, more of
    them than d / p, and a feed-forward of 4 d: the fewest layers with which
    heads can use the budget, and the most that the thresholds allow; and the
    one nearest to BERT's with standard heads, its feed-forward widened with
    what layers leave. None exceeds what the paper's tables measured: 24 layers,
    heads or a feed-forward of 8 d, heads of 4096 together.

    `parameters` is the budget, which no suggestion exceeds; like the paper's
    counts it includes both pre-training heads. `embedding_dim` fixes d. The
    other arguments are a `FixedHeadBackbone`'s. Returns at most `count`
    suggestions, best first, and after these the one with standard heads.
    """
    positive_int("parameters", parameters)
    positive_int("count", count)
    positive_int("sequence_length", sequence_length, most=max_sequence_length)
    positive_int("embedding_dim", embedding_dim, optional=True)
    dims = _EMBEDDING_DIMS if embedding_dim is None else [embedding_dim]
    tables = {
        "vocabulary_size": vocabulary_size,
        "max_sequence_length": max_sequence_length,
        "pooler": pooler,
    }
    search = _Search(parameters, sequence_length, tables)
    shapes = search.published(embedding_dim)
    for dim in dims:
        shapes += search.fixed(dim)
    if not shapes:
        smallest = _total(search.shape(dims[0], 1, 1))
        raise ValueError(
            f"`parameters` must be at least {smallest:,}, for one layer with "
            f"one head at an embedding size of {dims[0]}. "
            f"Received: parameters={parameters!r}"
        )
    standard = search.standard(dims)
    suggestions = [
        Suggestion.of(shape, sequence_length, parameters)
        for shape in dict.fromkeys([*shapes, *standard])
    ]
    ranked = [_compared(x, shapes) for x in sorted(suggestions, key=_rank)]
    best, others = ranked[:count], ranked[count:]
    return best + [other for other in others if other.shape in standard]


def leaner(model: Shaped, sequence_length: int) -> Suggestion:
    """A shape with three fifths of the layers and more heads of the same size.

    'Leaner Transformers: More Heads, Less Depth' (arXiv 2505.20802): more
    heads improve the conditioning of attention, so that 30-50% of the layers
    can go. Its published variants also widen the embedding; here it stays,
    which is untested, and the suggestion says so. `model` must have at least
    two layers and one head size; its parameters are the budget.
    """
    shape = EncoderShape.of(model)
    sizes = {size for layer in shape.head_sizes for size in layer}
    if shape.num_layers == 1 or len(sizes) > 1:
        raise ValueError(
            "`model` must have at least two layers, and heads of one size. "
            f"Received: model={model!r}"
        )
    budget = _total(shape)
    layers = max(1, math.floor(_LEANER_DEPTH * shape.num_layers))

    def with_heads(heads):
        return dataclasses.replace(
            shape, num_layers=layers, num_heads=heads, head_size=min(sizes)
        )

    one = _total(with_heads(1))
    heads = 1 + (budget - one) // (_total(with_heads(2)) - one)
    found = Suggestion.of(with_heads(heads), sequence_length, budget)
    return found.leaner_than(shape)


@dataclasses.dataclass(frozen=True)
class _Search:
    """Shapes that a budget allows, all with the same embedding tables."""

    parameters: int
    sequence_length: int
    tables: dict

    def shape(self, hidden_dim, num_layers, num_heads, **others):
        # As large as the sequence is long, but not of higher rank than d.
        size = min(max(self.sequence_length, _SMALLEST_HEAD), hidden_dim)
        sizes = {
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": _FEED_FORWARD * hidden_dim,
            "head_size": size,
        }
        return EncoderShape(**{**sizes, **others, **self.tables})

    def uses_well(self, shape):
        used = _total(shape) / self.parameters
        return WELL_USED <= used <= 1

    def largest(self, shape_of, most):
        number = bisect.bisect_right(
            range(1, most + 1),
            self.parameters,
            key=lambda n: _total(shape_of(n)),
        )
        return shape_of(number) if number else None

    def published(self, hidden_dim):
        shapes = (
            EncoderShape(**{**presets.shape(name), **self.tables})
            for name in presets.PUBLISHED
        )
        return [
            shape
            for shape in shapes
            if hidden_dim in (None, shape.hidden_dim) and self.uses_well(shape)
        ]

    def fixed(self, hidden_dim):
        """Few layers with many heads, more layers with fewer, or nothing."""
        size = self.shape(hidden_dim, 1, 1).head_size
        # More than a layer with standard heads of this size (Theorem 2).
        fewest = hidden_dim // size + 1
        widest = min(_WIDEST_HEADS, _WIDEST * hidden_dim)
        most = max(fewest, widest // size)
        first, last = _depths(hidden_dim)

        def with_most_heads(layers):
            return self.largest(
                lambda heads: self.shape(hidden_dim, layers, heads), most
            )

        shapes = list(filter(None, map(with_most_heads, range(1, last + 1))))
        wide = [shape for shape in shapes if shape.num_heads >= fewest]
        whole = [shape for shape in wide if shape.num_layers >= first]
        if not whole:
            # No room for these: the most layers with such heads, or one layer.
            return (wide or shapes[:1])[-1:]
        well_used = list(filter(self.uses_well, whole))
        found = [(well_used or whole[-1:])[0], whole[-1]]
        if not well_used and last < _DEEPEST:
            # Only depth past the thresholds uses more of the budget.
            deep = self.largest(
                lambda layers: self.shape(hidden_dim, layers, most), _DEEPEST
            )
            found.append(deep)
        return found

    def standard(self, dims):
        found = filter(None, map(self.with_standard_heads, dims))
        # The nearest to BERT's feed-forward.
        return sorted(
            found,
            key=lambda shape: (
                shape.intermediate_dim / shape.hidden_dim,
                not self.uses_well(shape),
                shape.hidden_dim,
            ),
        )[:1]

    def with_standard_heads(self, hidden_dim):
        """The most layers, then the widest feed-forward, or `None`."""
        most = max(1, hidden_dim // _STANDARD_HEAD)
        heads = max(n for n in range(1, most + 1) if hidden_dim % n == 0)

        def shape_of(layers, width=_FEED_FORWARD):
            return self.shape(
                hidden_dim,
                layers,
                heads,
                head_size=hidden_dim // heads,
                intermediate_dim=width * hidden_dim,
            )

        deepest = self.largest(shape_of, _depths(hidden_dim)[1])
        if deepest is None:
            return None
        return self.largest(
            lambda width: shape_of(deepest.num_layers, width), _WIDEST
        )


def _total(shape):
    return ParameterCount.of(shape).total


def _depths(hidden_dim):
    """The fewest and the most layers that the thresholds support."""
    first = max(1, math.floor(depth_threshold(hidden_dim)))
    last = math.floor(fitted_depth_threshold(hidden_dim))
    return min(first, _DEEPEST), min(max(first, last), _DEEPEST)


def _rank(suggestion):
    shape, cost = suggestion.shape, suggestion.cost
    first, last = _depths(shape.hidden_dim)
    unmeasured = suggestion.published is None
    return (
        cost.bottlenecked,
        unmeasured,
        unmeasured and suggestion.budget_share < WELL_USED,
        unmeasured and not first <= shape.num_layers <= last,
        shape.hidden_dim,
        -min(cost.smallest_head_size, cost.sequence_length),
        -shape.num_heads,
        shape.num_layers,
    )


def _compared(suggestion, shapes):
    """The suggestion, compared to a deeper shape that is otherwise equal."""
    shape = suggestion.shape
    for deeper in shapes:
        layers, heads = deeper.num_layers, deeper.num_heads
        if layers > shape.num_layers and heads < shape.num_heads:
            same = {"num_layers": layers, "num_heads": heads}
            if dataclasses.replace(shape, **same) == deeper:
                return suggestion.leaner_than(deeper)
    return suggestion
