"""What is proved or fitted about attention, as functions."""

from keras_fixedhead.theory.depth import (
    depth_threshold,
    fitted_depth_threshold,
)

__all__ = ["depth_threshold", "fitted_depth_threshold"]
