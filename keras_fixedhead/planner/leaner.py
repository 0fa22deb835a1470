"""More heads and fewer layers for the same parameters."""

import dataclasses
import math
import numbers

from keras_fixedhead.planner.parameters import ParameterCount
from keras_fixedhead.planner.reasons import Suggestion
from keras_fixedhead.planner.shape import EncoderShape


def leaner(model, sequence_length, share=1.0, depth_share=0.6):
    """A shape with fewer layers and more heads of the same size.

    'Leaner Transformers: More Heads, Less Depth' (arXiv 2505.20802): more
    heads improve the conditioning of attention, so that 30-50% of the layers
    can go. Its published variants also widen the embedding with the heads, 64
    for each; here the embedding stays, which is untested, and the suggestion
    says so.

    Args:
        model: an `EncoderShape` or a `FixedHeadBackbone`, with one head size.
        sequence_length: int, in tokens.
        share: float in (0, 1]. The part of its parameters to spend, both
            pre-training heads included.
        depth_share: float in (0, 1). The part of its layers to keep, rounded
            down, at least one.

    Returns:
        A `Suggestion`, with as many heads as go into the budget.

    Raises:
        ValueError: if there is one layer only, there are several head sizes,
            a share is out of its range, or the budget has no room for more
            heads.
    """
    shape = EncoderShape.of(model)
    sizes = {size for layer in shape.head_sizes for size in layer}
    if shape.num_layers == 1 or len(sizes) > 1:
        raise ValueError(
            "`model` must have at least two layers, and heads of one size. "
            f"Received: model={model!r}"
        )
    if not isinstance(share, numbers.Real) or not 0 < share <= 1:
        raise ValueError(
            f"`share` must be over 0 and at most 1. Received: share={share!r}"
        )
    if not isinstance(depth_share, numbers.Real) or not 0 < depth_share < 1:
        raise ValueError(
            "`depth_share` must be over 0 and under 1. "
            f"Received: depth_share={depth_share!r}"
        )
    budget = math.floor(share * ParameterCount.of(shape).total)
    layers = max(1, math.floor(depth_share * shape.num_layers))

    def total(heads):
        return ParameterCount.of(with_heads(heads)).total

    def with_heads(heads):
        return dataclasses.replace(
            shape, num_layers=layers, num_heads=heads, head_size=min(sizes)
        )

    one_more = total(2) - total(1)
    heads = 1 + (budget - total(1)) // one_more
    if heads <= shape.num_heads:
        raise ValueError(
            f"`share` must leave room for more than {shape.num_heads} heads "
            f"in {layers} layers. The smallest that does is "
            f"{total(shape.num_heads + 1) / ParameterCount.of(shape).total:.3f}"
            f". Received: share={share!r}"
        )
    found = Suggestion.of(with_heads(heads), sequence_length, budget)
    return found.leaner_than(shape)
