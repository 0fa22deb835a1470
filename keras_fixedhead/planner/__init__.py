"""What a shape costs, and which shape to train for a budget."""

from keras_fixedhead.planner.flops import encoder_flops, masked_lm_flops
from keras_fixedhead.planner.shape import EncoderShape

__all__ = ["EncoderShape", "encoder_flops", "masked_lm_flops"]
