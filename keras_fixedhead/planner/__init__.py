"""What a shape costs, and which shape to train for a budget."""

from keras_fixedhead.planner.cost import Cost
from keras_fixedhead.planner.flops import (
    encoder_flops,
    forward_flops,
    masked_lm_flops,
    training_flops,
)
from keras_fixedhead.planner.parameters import ParameterCount
from keras_fixedhead.planner.shape import EncoderShape

__all__ = [
    "Cost",
    "EncoderShape",
    "ParameterCount",
    "encoder_flops",
    "forward_flops",
    "masked_lm_flops",
    "training_flops",
]
