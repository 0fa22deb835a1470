"""What a shape costs, and which shape to train for a budget."""

from keras_fixedhead.planner.cost import Cost
from keras_fixedhead.planner.flops import (
    encoder_flops,
    forward_flops,
    masked_lm_flops,
    training_flops,
)
from keras_fixedhead.planner.leaner import leaner
from keras_fixedhead.planner.memory import activation_bytes, state_bytes
from keras_fixedhead.planner.parameters import ParameterCount
from keras_fixedhead.planner.reasons import Suggestion
from keras_fixedhead.planner.shape import EncoderShape
from keras_fixedhead.planner.suggest import suggest

__all__ = [
    "Cost",
    "EncoderShape",
    "ParameterCount",
    "Suggestion",
    "activation_bytes",
    "encoder_flops",
    "forward_flops",
    "leaner",
    "masked_lm_flops",
    "state_bytes",
    "suggest",
    "training_flops",
]
