"""The paper's theorems as code: what heads of a given size can compute.

`python -m keras_fixedhead.theory` draws what heads of each size miss.

Source: Bhojanapalli et al. 2020, https://arxiv.org/abs/2002.07028.
"""

from keras_fixedhead.theory.depth import (
    depth_threshold,
    fitted_depth_threshold,
)
from keras_fixedhead.theory.expressiveness import (
    Difference,
    check_strictness,
    find_difference,
    strict_layer,
)
from keras_fixedhead.theory.representation import (
    ContextFit,
    attention_layer,
    construct_projections,
    fit_context,
    lowest_error,
)

__all__ = [
    "ContextFit",
    "Difference",
    "attention_layer",
    "check_strictness",
    "construct_projections",
    "depth_threshold",
    "find_difference",
    "fit_context",
    "fitted_depth_threshold",
    "lowest_error",
    "strict_layer",
]
