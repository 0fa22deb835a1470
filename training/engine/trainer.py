"""Updates and evaluations of a task's model, as Orbit calls them."""

import re
import time
import timeit
from collections.abc import Iterator

import numpy as np
import orbit
import tensorflow as tf

from training.engine.configs import RunConfig
from training.engine.optimizer import ReduceThenClip
from training.engine.strategy import distribute
from training.engine.task import SequenceTask

# Peak of dense products in bfloat16 (float16 on the T4 and the V100), in
# operations a second, without sparsity, from NVIDIA's data sheets.
_PEAK_FLOPS = {
    "A100": 312e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "L4": 121e12,
    "T4": 65e12,
    "V100": 125e12,
}


def peak_flops(dtype: str) -> float | None:
    """Returns the peak operations a second of one device, None if unknown.

    Of a GPU, in bfloat16 whatever the `dtype`; of a CPU, measured.
    """
    if tf.config.list_logical_devices("TPU"):
        return None
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return _measured(dtype)
    details = tf.config.experimental.get_device_details(gpus[0])
    return _of_gpu(details.get("device_name", ""))


def _of_gpu(device_name):
    for name, peak in _PEAK_FLOPS.items():
        # As a word: an L40S is not an L4.
        if re.search(rf"\b{name}\b", device_name):
            return peak
    return None


def _measured(dtype, size=1024, repeats=8):
    left = tf.random.stateless_normal([size, size], seed=[0, 0])
    left = tf.cast(left, dtype)
    product = tf.function(lambda: tf.linalg.matmul(left, left))
    product()
    best = min(timeit.repeat(product, repeat=repeats, number=1))
    devices = len(tf.config.list_logical_devices("CPU"))
    return 2 * size**3 / best / devices


class Trainer(orbit.StandardTrainer):
    """Updates of a task's model; reports means since the last report."""

    def __init__(
        self,
        task: SequenceTask,
        optimizer: ReduceThenClip,
        strategy: tf.distribute.Strategy,
        run: RunConfig,
    ):
        super().__init__(train_dataset=None)
        self._task = task
        self._optimizer = optimizer
        self._strategy = strategy
        self._parts = run.accumulation_steps
        self._variables = task.model.trainable_variables
        self._replica_update = self._update
        if run.jit_compile:
            self._replica_update = tf.function(
                self._update, jit_compile=True, autograph=False
            )
        self._names = ("loss", *task.metrics, *task.counts)
        with strategy.scope():
            self._sums = tf.Variable([0.0] * len(self._names), trainable=False)
        self._peak_flops = peak_flops(task.model.dtype_policy.compute_dtype)
        self._started, self._first_step = 0.0, 0

    def _gradients(self, batch, totals):
        """Returns shares of loss and metrics, as one tensor, and gradients."""
        with tf.GradientTape() as tape:
            loss, metrics = self._task.loss(batch, totals)
        values = [variable.value for variable in self._variables]
        return (
            tf.stack([loss, *(metrics[name] for name in self._task.metrics)]),
            list(map(tf.convert_to_tensor, tape.gradient(loss, values))),
        )

    def _accumulated(self, batch, totals):
        """Computes what `_gradients` does, part by part."""
        # [M, ...] -> [parts, M / parts, ...]
        parts = tf.nest.map_structure(
            lambda x: tf.stack(tf.split(x, self._parts)), batch
        )

        def part(number):
            one = tf.nest.map_structure(lambda x: x[number], parts)
            return tf.nest.flatten(self._gradients(one, totals))

        def add(number, sums):
            return number + 1, [a + b for a, b in zip(sums, part(number))]

        _, sums = tf.while_loop(
            lambda number, sums: number < self._parts,
            add,
            (tf.constant(1), part(0)),
            parallel_iterations=1,
        )
        return sums[0], sums[1:]

    def _update(self, batch):
        replica = tf.distribute.get_replica_context()
        totals = self._task.totals(batch)
        if totals:
            totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, totals)
        gradients = self._gradients if self._parts == 1 else self._accumulated
        losses, gradients = gradients(batch, totals)
        self._optimizer.apply(gradients, self._variables)
        # The totals are the same on each replica.
        counts = [
            totals[name] / replica.num_replicas_in_sync
            for name in self._task.counts
        ]
        return tf.concat([losses, tf.cast(counts, losses.dtype)], axis=0)

    def train_loop_begin(self) -> None:
        self._sums.assign(tf.zeros_like(self._sums))
        self._first_step = int(self._optimizer.iterations.numpy())
        self._started = time.monotonic()

    @tf.autograph.experimental.do_not_convert
    def train_step(self, iterator: Iterator) -> None:
        values = self._strategy.run(
            self._replica_update, args=(next(iterator),)
        )
        values = self._strategy.reduce(
            tf.distribute.ReduceOp.SUM, values, axis=None
        )
        self._sums.assign_add(tf.cast(values, tf.float32))

    def train_loop_end(self) -> dict[str, float]:
        steps = int(self._optimizer.iterations.numpy()) - self._first_step
        sums = self._sums.numpy().tolist()
        means = {name: x / steps for name, x in zip(self._names, sums)}
        # Reading the results has waited for the updates.
        seconds = (time.monotonic() - self._started) / steps
        totals = {name: means.pop(name) for name in self._task.counts}
        rates = {"steps_per_second": 1 / seconds} | {
            f"{name}_per_second": totals[name] / seconds
            for name in ("examples", "tokens")
            if name in totals
        }
        flops = self._task.flops(totals)
        if flops is not None and self._peak_flops is not None:
            peak = self._peak_flops * self._strategy.num_replicas_in_sync
            rates["model_flops_utilization"] = flops / seconds / peak
        return {
            **means,
            "gradient_norm": float(self._optimizer.gradient_norm.numpy()),
            # Of the next update.
            "learning_rate": float(self._optimizer.learning_rate),
            **rates,
        }


class Evaluator(orbit.StandardEvaluator):
    """Gathers the outputs of all replicas, for the task's metrics."""

    def __init__(self, task: SequenceTask, strategy: tf.distribute.Strategy):
        super().__init__(distribute(strategy, task.evaluation_dataset))
        self._task = task
        self._strategy = strategy

    def eval_begin(self) -> list:
        return []

    @tf.autograph.experimental.do_not_convert
    def eval_step(self, iterator: Iterator) -> dict[str, tf.Tensor]:
        outputs = self._strategy.run(
            self._task.evaluation_step, args=(next(iterator),)
        )
        return tf.nest.map_structure(
            lambda output: self._strategy.gather(output, axis=0), outputs
        )

    def eval_reduce(self, state: list, step_outputs: dict) -> list:
        return [*state, step_outputs]

    def eval_end(self, batches: list) -> dict[str, float]:
        return self._task.figures(
            {
                name: np.concatenate([batch[name] for batch in batches])
                for name in batches[0]
            }
        )
