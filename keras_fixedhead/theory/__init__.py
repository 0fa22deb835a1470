"""The paper's theorems as code: what heads of a given size can compute.

`python -m keras_fixedhead.theory` draws what heads of each size miss.

Source: Bhojanapalli et al. 2020, https://arxiv.org/abs/2002.07028.
"""

from keras_fixedhead.command import public_names

__getattr__, __all__ = public_names(
    __name__,
    depth="depth_threshold fitted_depth_threshold",
    expressiveness="Difference check_strictness find_difference strict_layer",
    representation=(
        "ContextFit attention_layer construct_projections fit_context "
        "lowest_error"
    ),
)
