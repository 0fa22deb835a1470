"""The optimizer of a run: AdamW, LAMB or SGD, its rate, exact clipping."""

import math

import keras
import tensorflow as tf

from training.engine.configs import TrainingConfig


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
        decay: str = "linear",
    ):
        if decay not in ("linear", "cosine", "rsqrt"):
            raise ValueError(
                "`decay` must be 'linear', 'cosine' or 'rsqrt'. Received: "
                f"{decay!r}"
            )
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "`warmup_steps` must be at least 0 and smaller than the "
                f"number of steps ({total_steps}). Received: {warmup_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.decay = decay

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
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

    def get_config(self) -> dict:
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "decay": self.decay,
        }


class ReduceThenClip(keras.optimizers.Optimizer):
    """A Keras optimizer that clips by the true global norm.

    Keras 3 clips each replica's gradients before it sums them, and takes the
    norm of `tf.IndexedSlices` without adding up the rows of repeated tokens.
    Here they are made dense, summed across replicas, then clipped. Losses must
    be shares of the global mean. `gradient_norm` is a float variable, the norm
    before the last clipping. A subclass names this class first.
    """

    def build(self, variables: list[keras.Variable]) -> None:
        if not self.built:
            self.gradient_norm = self.add_variable(
                (),
                dtype="float32",
                name="gradient_norm",
                aggregation="only_first_replica",
            )
        super().build(variables)

    def _clip_gradients(self, grads):
        grads = [tf.convert_to_tensor(gradient) for gradient in grads]
        grads = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, grads
        )
        norm = tf.linalg.global_norm(grads)
        self.gradient_norm.assign(norm)
        if self.global_clipnorm is None:
            return super()._clip_gradients(grads)
        # As Keras, but without computing the norm again.
        grads, _ = tf.clip_by_global_norm(grads, self.global_clipnorm, norm)
        return grads

    def _all_reduce_sum_gradients(self, grads_and_vars):
        # `_clip_gradients` has summed them already.
        return grads_and_vars


class ClippedAdamW(ReduceThenClip, keras.optimizers.AdamW):
    """AdamW with clipping that is the same on one device and on many.

    An update is one pass over the memory of a weight and its moments, in half
    the time of Keras's several passes.
    """

    def update_step(
        self,
        gradient: tf.Tensor,
        variable: keras.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        index = self._get_variable_index(variable)
        dtype = variable.dtype
        beta_1, beta_2 = (
            tf.constant(beta, dtype) for beta in (self.beta_1, self.beta_2)
        )
        update = tf.cast(self.iterations.value + 1, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=beta_1**update,
            beta2_power=beta_2**update,
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.constant(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )


class ClippedLamb(ReduceThenClip, keras.optimizers.Lamb):
    """LAMB (You et al. 2019) with this clipping.

    Keras decays weights beside the layer-wise scaled update, not inside it as
    the paper's Algorithm 2 does.
    """


class ClippedSGD(ReduceThenClip, keras.optimizers.SGD):
    """Gradient descent with this clipping."""


_OPTIMIZERS = {"adamw": ClippedAdamW, "lamb": ClippedLamb, "sgd": ClippedSGD}


def build_optimizer(
    config: TrainingConfig, variables: list[keras.Variable]
) -> ReduceThenClip:
    """Returns an optimizer, built in the scope of the variables' strategy.

    Weights of rank below 2 do not decay: biases, norms, a temperature.
    """
    if config.optimizer not in _OPTIMIZERS:
        raise ValueError(
            f"`optimizer` must be one of {', '.join(_OPTIMIZERS)}. Received: "
            f"{config.optimizer!r}"
        )
    for name, fits in {
        "learning_rate": config.learning_rate >= 0,
        "weight_decay": config.weight_decay >= 0,
        "clip_norm": config.clip_norm is None or config.clip_norm > 0,
        "beta_1": 0 <= config.beta_1 < 1,
        "beta_2": 0 <= config.beta_2 < 1,
        "epsilon": config.epsilon > 0,
    }.items():
        if not fits:
            raise ValueError(
                f"`{name}` is out of its range: rates are at least 0, "
                "betas from 0 to 1 (excluded), epsilon and clip_norm "
                f"positive. Received: {getattr(config, name)}"
            )
    moments = {
        name: getattr(config, name) for name in ("beta_1", "beta_2", "epsilon")
    }
    optimizer = _OPTIMIZERS[config.optimizer](
        learning_rate=WarmupDecay(
            config.learning_rate,
            config.warmup_steps,
            config.steps,
            config.decay,
        ),
        weight_decay=config.weight_decay,
        global_clipnorm=config.clip_norm,
        **({} if config.optimizer == "sgd" else moments),
    )
    optimizer.exclude_from_weight_decay(
        var_list=[v for v in variables if len(v.shape) < 2]
    )
    optimizer.build(variables)
    return optimizer
