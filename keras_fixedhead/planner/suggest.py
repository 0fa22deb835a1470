"""Which shapes to train for a budget of parameters.

Letters: d embedding size, p head size, h heads, L layers.
"""

import bisect
import dataclasses
import math

from keras_fixedhead import presets
from keras_fixedhead.planner.parameters import ParameterCount
from keras_fixedhead.planner.reasons import WELL_USED, Suggestion
from keras_fixedhead.planner.shape import EncoderShape, is_size
from keras_fixedhead.theory.depth import (
    depth_threshold,
    fitted_depth_threshold,
)

_EMBEDDING_DIMS = (128, 192, 256, 384, 512, 768, 1024)
# What the paper has measured goes no further than this.
_DEEPEST = 24
_SMALLEST_HEAD = 32
_WIDEST_HEADS = 4096  # all heads of a layer together
_WIDEST = 8  # times the embedding size; heads, or the feed-forward
# BERT's, for the shapes with standard heads.
_STANDARD_HEAD = 64
_FEED_FORWARD = 4  # times the embedding size


def suggest(
    parameters,
    sequence_length,
    embedding_dim=None,
    vocabulary_size=30522,
    max_sequence_length=512,
    num_segments=2,
    pooler=True,
    count=5,
):
    """Ranks shapes for a budget, with what speaks for and against each.

    Shapes without a bottleneck (no head, nor the embedding, under the
    sequence length) come before those with one, and among these the shapes of
    the paper's tables, which alone have published figures, before all others.
    Of the others those that use nine tenths of the budget come first, then
    those whose depth is within the thresholds, from log_3(d), rounded down,
    to the later fit. Of what is left equal the smaller embedding comes first,
    for the index, and at one embedding size larger heads, then more heads
    before more layers.

    What is ranked: the paper's shapes that use the budget well; for each
    embedding size two with heads as large as the sequence is long, more of
    them than d / p, and a feed-forward of 4 d: the fewest layers with which
    heads can use the budget, and the most that the thresholds allow; and the
    one nearest to BERT's with standard heads (64 each, or the next size that
    divides d), its feed-forward widened with what layers leave. None has more
    than 24 layers, or heads or a feed-forward wider than 8 d, or heads wider
    than 4096 together: beyond that the paper's tables have measured nothing.

    Args:
        parameters: int. The budget, both pre-training heads included, as the
            paper counts. No suggestion is above it.
        sequence_length: int, in tokens. The sequences to be encoded.
        embedding_dim: int, held fixed, or `None` to choose.
        vocabulary_size: int.
        max_sequence_length: int. The position embeddings.
        num_segments: int.
        pooler: bool.
        count: int. How many of the ranked shapes to return.

    Returns:
        A list of `Suggestion`, best first: `count` of them or fewer, and the
        one with standard heads, if it is not among them, after these; it is
        left out where not one of its layers fits.

    Raises:
        ValueError: if a number is not a positive integer, the sequence is
            longer than there are positions for, or the budget is too small
            for any shape.
    """
    _check(
        parameters=parameters,
        sequence_length=sequence_length,
        count=count,
        max_sequence_length=max_sequence_length,
        **({} if embedding_dim is None else {"embedding_dim": embedding_dim}),
    )
    if sequence_length > max_sequence_length:
        raise ValueError(
            "`sequence_length` must be at most `max_sequence_length`, "
            f"{max_sequence_length}: raise one or cut the other. "
            f"Received: sequence_length={sequence_length!r}"
        )
    search = _Search(
        parameters,
        sequence_length,
        vocabulary_size=vocabulary_size,
        max_sequence_length=max_sequence_length,
        num_segments=num_segments,
        pooler=pooler,
    )
    sizes = _EMBEDDING_DIMS if embedding_dim is None else (embedding_dim,)
    shapes = search.published(embedding_dim)
    for size in sizes:
        shapes += search.fixed(size)
    if not shapes:
        smallest = search.total(search.shape(sizes[0], 1, 1))
        raise ValueError(
            f"`parameters` must be at least {smallest:,}, for one layer with "
            f"one head at an embedding size of {sizes[0]}. "
            f"Received: parameters={parameters!r}"
        )
    standard = search.standard(sizes)
    ranked = sorted(
        (
            Suggestion.of(shape, sequence_length, parameters)
            for shape in dict.fromkeys([*shapes, *standard])
        ),
        key=_rank,
    )
    ranked = [_compared(suggestion, shapes) for suggestion in ranked]
    best, others = ranked[:count], ranked[count:]
    return best + [other for other in others if other.shape in standard]


def _compared(suggestion, shapes):
    """The suggestion, beside a deeper shape that is the same otherwise."""
    shape = suggestion.shape
    for deeper in shapes:
        layers, heads = deeper.num_layers, deeper.num_heads
        if layers > shape.num_layers and heads < shape.num_heads:
            same = {"num_layers": layers, "num_heads": heads}
            if dataclasses.replace(shape, **same) == deeper:
                return suggestion.leaner_than(deeper)
    return suggestion


class _Search:
    """Shapes that a budget allows, all with the same embedding tables."""

    def __init__(self, parameters, sequence_length, **tables):
        self.parameters = parameters
        self.sequence_length = sequence_length
        self.tables = tables

    def head_size(self, hidden_dim):
        """As large as the sequence is long, but not of higher rank than d."""
        return min(max(self.sequence_length, _SMALLEST_HEAD), hidden_dim)

    def shape(self, hidden_dim, num_layers, num_heads, **others):
        return EncoderShape(
            **{
                **self.tables,
                "hidden_dim": hidden_dim,
                "num_layers": num_layers,
                "num_heads": num_heads,
                "head_size": self.head_size(hidden_dim),
                "intermediate_dim": _FEED_FORWARD * hidden_dim,
                **others,
            }
        )

    def total(self, shape):
        return ParameterCount.of(shape).total

    def fits(self, shape):
        return self.total(shape) <= self.parameters

    def published(self, hidden_dim):
        """The blocks of the paper's shapes that use the budget well."""
        shapes = [
            EncoderShape(**{**presets.shape(name), **self.tables})
            for name in presets.PUBLISHED
        ]
        return [
            shape
            for shape in shapes
            if hidden_dim in (None, shape.hidden_dim)
            and self.fits(shape)
            and self.total(shape) >= WELL_USED * self.parameters
        ]

    def fixed(self, hidden_dim):
        """Few layers with many heads, more layers with fewer, or nothing."""
        size = self.head_size(hidden_dim)
        # More than a layer with standard heads of this size (Theorem 2).
        fewest = hidden_dim // size + 1
        widest = min(_WIDEST_HEADS, _WIDEST * hidden_dim)
        most = max(fewest, widest // size)
        first, last = _depths(hidden_dim)
        shapes = []
        for layers in range(1, last + 1):
            heads = _most(
                lambda n, layers=layers: self.fits(
                    self.shape(hidden_dim, layers, n)
                ),
                most,
            )
            if heads:
                shapes.append(self.shape(hidden_dim, layers, heads))
        whole = [
            shape
            for shape in shapes
            if shape.num_layers >= first and shape.num_heads >= fewest
        ]
        if not whole:
            # No room for these: the most layers with such heads, or one layer.
            wide = [shape for shape in shapes if shape.num_heads >= fewest]
            return (wide or shapes[:1])[-1:]
        well_used = [
            shape
            for shape in whole
            if self.total(shape) >= WELL_USED * self.parameters
        ]
        fewest_layers = (well_used or whole[-1:])[0]
        found = [fewest_layers, whole[-1]]
        if not well_used and last < _DEEPEST:
            # Depth that is past the thresholds, for want of better use.
            found.append(
                self.shape(
                    hidden_dim,
                    _most(
                        lambda n: self.fits(self.shape(hidden_dim, n, most)),
                        _DEEPEST,
                    ),
                    most,
                )
            )
        return found

    def standard(self, sizes):
        """The shape with standard heads, in a list, or an empty one."""
        found = []
        for hidden_dim in sizes:
            heads = max(
                n
                for n in range(1, max(1, hidden_dim // _STANDARD_HEAD) + 1)
                if hidden_dim % n == 0
            )
            common = {"num_heads": heads, "head_size": hidden_dim // heads}

            def fits(layers, width, hidden_dim=hidden_dim, common=common):
                sizes = {**common, "intermediate_dim": width * hidden_dim}
                return self.fits(
                    self.shape(hidden_dim, num_layers=layers, **sizes)
                )

            layers = _most(
                lambda n, fits=fits: fits(n, _FEED_FORWARD),
                _depths(hidden_dim)[1],
            )
            if layers:
                width = _most(
                    lambda n, fits=fits, layers=layers: fits(layers, n),
                    _WIDEST,
                )
                found.append(
                    self.shape(
                        hidden_dim,
                        num_layers=layers,
                        intermediate_dim=width * hidden_dim,
                        **common,
                    )
                )
        # The nearest to BERT's feed-forward.
        found.sort(
            key=lambda shape: (
                shape.intermediate_dim / shape.hidden_dim,
                self.total(shape) < WELL_USED * self.parameters,
                shape.hidden_dim,
            )
        )
        return found[:1]


def _depths(hidden_dim):
    """The fewest and the most layers that the thresholds speak for."""
    first = max(1, math.floor(depth_threshold(hidden_dim)))
    last = math.floor(fitted_depth_threshold(hidden_dim))
    return min(first, _DEEPEST), min(max(first, last), _DEEPEST)


def _most(fits, most):
    """The largest of 1, ..., `most` that fits, all under it too, or 0."""
    return bisect.bisect_left(
        range(1, most + 1), True, key=lambda n: not fits(n)
    )


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


def _check(**numbers):
    for name, number in numbers.items():
        if not is_size(number):
            raise ValueError(
                f"`{name}` must be a positive integer. "
                f"Received: {name}={number!r}"
            )
