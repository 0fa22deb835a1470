"""What a shape costs, and which shape to train for a budget."""

from keras_fixedhead.command import public_names

__getattr__, __all__ = public_names(
    __name__,
    cost=(
        "Cost EncoderShape ParameterCount activation_bytes encoder_flops "
        "masked_lm_flops"
    ),
    search="leaner suggest",
    suggestion="Suggestion",
)
