"""The paper's theorems as code: what heads of a given size can compute.

`python -m keras_fixedhead.theory` draws what heads of each size miss.

Source: Bhojanapalli et al. 2020, https://arxiv.org/abs/2002.07028.
"""

import math

from keras_fixedhead.attention_checks import positive_int
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
    """The number of layers up to which depth is worth more than width.

    In theory: `log_3(hidden_dim)`, a bound that was proved for a simplified
    self-attention. `hidden_dim` is the embedding size.

    Source: Levine et al. 2020, "Limits to Depth Efficiencies of
    Self-Attention", https://arxiv.org/abs/2006.12467v1.
    """
    return math.log(positive_int("hidden_dim", hidden_dim), 3)


def fitted_depth_threshold(hidden_dim: int) -> float:
    """The number of layers up to which depth is worth more than width.

    As measured: `(ln(hidden_dim) - 5.039) / 0.0555`, a line through the sizes
    at which trained language models of different depths were equally good.
    Below an embedding size of 155, outside the fit, it is negative.

    Source: a later fit by the same authors, "The Depth-to-Width Interplay in
    Self-Attention", https://arxiv.org/abs/2006.12467v3.
    """
    return (math.log(positive_int("hidden_dim", hidden_dim)) - 5.039) / 0.0555
