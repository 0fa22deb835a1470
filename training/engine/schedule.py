"""The learning rate of a run. `training.reproduce` has no TensorFlow."""

import math
from typing import Any, Literal

import keras


class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to `peak` over `warmup_steps`, then falls towards zero.

    The first update has `1 / warmup_steps` of the peak. A "linear" or "cosine"
    `decay` would reach zero one update after the last of `total_steps`;
    "rsqrt" falls with the square root of the update (Vaswani et al. 2017,
    section 5.3), whatever `total_steps` is.
    """

    def __init__(
        self,
        peak: float,
        warmup_steps: int,
        total_steps: int,
        decay: Literal["linear", "cosine", "rsqrt"] = "linear",
    ):
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "`warmup_steps` must be at least 0 and smaller than the "
                f"number of steps ({total_steps}). Received: {warmup_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.decay = decay

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate, a float32 scalar, for update `step`."""
        update = keras.ops.cast(step, "float32") + 1.0
        rise = update / max(self.warmup_steps, 1)
        if self.decay == "rsqrt":
            fall = keras.ops.rsqrt(rise)
        else:
            end = self.total_steps + 1
            fall = (end - update) / (end - self.warmup_steps)
            fall = keras.ops.clip(fall, 0.0, 1.0)
        if self.decay == "cosine":
            fall = 0.5 - 0.5 * keras.ops.cos(fall * math.pi)
        return self.peak * keras.ops.where(
            update <= self.warmup_steps, rise, fall
        )
