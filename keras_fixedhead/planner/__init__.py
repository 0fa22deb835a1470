"""What a shape costs, and which shape to train for a budget."""

from keras_fixedhead.command import public_names

__getattr__, __all__ = public_names(
    __name__,
    cost="Cost encoder_flops forward_flops masked_lm_flops training_flops",
    memory="activation_bytes state_bytes",
    search="leaner suggest",
    shape="EncoderShape ParameterCount",
    suggestion="Suggestion",
)
