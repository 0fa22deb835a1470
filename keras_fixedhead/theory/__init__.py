"""The paper's theorems as code: what heads of a given size can compute.

Source: Bhojanapalli et al. 2020, https://arxiv.org/abs/2002.07028.
"""

import math

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.command import public_names

__getattr__, __all__ = public_names(
    __name__,
    expressiveness="Difference check_strictness find_difference strict_layer",
    representation=(
        "ContextFit attention_layer construct_projections fit_context "
        "lowest_error"
    ),
)
__all__ += ["depth_threshold", "fitted_depth_threshold"]


def depth_threshold(hidden_dim: int) -> float:
    """`log_3(hidden_dim)`: up to so many layers depth is worth more than width.

    A bound that was proved for a simplified self-attention (Levine et al. 2020,
    https://arxiv.org/abs/2006.12467v1).
    """
    return math.log(positive_int("hidden_dim", hidden_dim), 3)


def fitted_depth_threshold(hidden_dim: int) -> float:
    """The same as measured by the paper's later version, below 0 under 155."""
    return (math.log(positive_int("hidden_dim", hidden_dim)) - 5.039) / 0.0555
