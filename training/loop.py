"""The one training loop: Orbit, for every task and every strategy."""

import abc
import contextlib
import os
import pathlib
import shutil
import tempfile
import time

import keras
import numpy as np
import orbit
import tensorflow as tf

from training.checkpoints import RestoredCheckpointManager
from training.configs import RunConfig, TrainingConfig
from training.hardware import peak_flops
from training.interruption import Interrupted, SignalStop, explained
from training.optimizer import build_optimizer
from training.records import RunRecords
from training.strategy import draw_for_each_replica, replica_batch_size


class Task(abc.ABC):
    """What the loop needs to know about what is learned.

    `model` is a Keras model or layer, `None` before `build`; `metrics` are
    the names of what `loss` returns beside the loss, `counts` those of
    `totals`. `settings`, JSON values by name, decide the result beside the
    model and its training; `warnings` are sentences to print.
    """

    model = None
    metrics = ()
    counts = ()
    settings = {}
    warnings = ()

    @abc.abstractmethod
    def build(self):
        """Sets `model`; called in the strategy's scope."""

    @abc.abstractmethod
    def training_dataset(
        self, context: tf.distribute.InputContext, first_step: int
    ) -> tf.data.Dataset:
        """Endless batches of one replica, from update `first_step` on.

        A global batch must depend on its step and the seed alone, so that a
        resumed run, on as many devices or not, sees what it would have seen.
        """

    def totals(self, batch) -> dict:
        """Counts of this replica's batch, float scalars.

        The loop adds them up over the global batch. What is called
        `examples`, `tokens` is reported by the second.
        """
        return {}

    @abc.abstractmethod
    def loss(self, batch, totals) -> tuple:
        """This batch's share of the global batch's mean loss.

        Called in replica context. The batch may be a part of the replica's.

        Args:
            batch: An element of the training dataset, or some rows of it.
            totals: Dictionary, what `totals` adds up to over all replicas.

        Returns:
            A scalar and a dictionary of further scalars to report, named as
            in `metrics`. The shares of all replicas and parts add up to the
            means over the global batch.
        """

    def flops(self, totals: dict) -> float | None:
        """Floating-point operations of an update with such totals."""
        return None

    @abc.abstractmethod
    def evaluation_dataset(
        self, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """The replica's batches of one evaluation, as many on each."""

    @abc.abstractmethod
    def evaluation_step(self, batch) -> dict:
        """Tensors, examples first, from which the figures are computed."""

    @abc.abstractmethod
    def figures(self, outputs: dict) -> dict[str, float]:
        """Figures, from the NumPy outputs of all batches of all replicas."""

    @abc.abstractmethod
    def save(self, folder: pathlib.Path):
        """Writes the preset."""

    def check_data(self, error: tf.errors.OpError):  # noqa: B027
        """Looks whether the data is to blame for an error of TensorFlow.

        Raises:
            OSError, ValueError: It is; names the file.
        """


class Trainer(orbit.StandardTrainer):
    """Updates of a task's model; reports means since the last report."""

    def __init__(self, task, optimizer, strategy, training):
        super().__init__(train_dataset=None)
        self._task = task
        self._optimizer = optimizer
        self._strategy = strategy
        self._parts = training.accumulation_steps
        self._variables = task.model.trainable_variables
        if training.jit_compile:
            self._update = tf.function(self._update, jit_compile=True)
        names = ("loss", *task.metrics, *task.counts)
        with strategy.scope():
            self._sums = {
                name: tf.Variable(0.0, trainable=False) for name in names
            }
            self._steps = tf.Variable(0.0, trainable=False)
        dtype = task.model.dtype_policy.compute_dtype
        self._peak_flops = peak_flops(dtype)
        self._started = None

    def _gradients(self, batch, totals):
        """Share of the losses, `[1 + metrics]`, and dense gradients of it."""
        with tf.GradientTape() as tape:
            loss, metrics = self._task.loss(batch, totals)
        values = [variable.value for variable in self._variables]
        return (
            tf.stack([loss, *(metrics[name] for name in self._task.metrics)]),
            [
                tf.convert_to_tensor(gradient)
                for gradient in tape.gradient(loss, values)
            ],
        )

    def _accumulated(self, batch, totals):
        """The same, computed part by part."""
        # [M, ...] -> [parts, M / parts, ...]
        parts = tf.nest.map_structure(
            lambda x: tf.reshape(x, [self._parts, -1, *x.shape[1:].as_list()]),
            batch,
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
        return losses, [totals[name] for name in self._task.counts]

    def train_loop_begin(self):
        for variable in (*self._sums.values(), self._steps):
            variable.assign(0.0)
        self._started = time.monotonic()

    def train_step(self, iterator):
        losses, totals = self._strategy.run(
            self._update, args=(next(iterator),)
        )
        losses = tf.unstack(
            self._strategy.reduce(
                tf.distribute.ReduceOp.SUM, losses, axis=None
            ),
            1 + len(self._task.metrics),
        )
        # They are the same on each replica.
        totals = [
            self._strategy.experimental_local_results(total)[0]
            for total in totals
        ]
        for variable, value in zip(self._sums.values(), [*losses, *totals]):
            variable.assign_add(tf.cast(value, tf.float32))
        self._steps.assign_add(1.0)

    def train_loop_end(self):
        steps = float(self._steps.numpy())
        means = {
            name: float(variable.numpy()) / steps
            for name, variable in self._sums.items()
        }
        # After the results are here, and hence the updates done.
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
            # The next update's.
            "learning_rate": float(self._optimizer.learning_rate),
            **rates,
        }


class _Evaluator(orbit.StandardEvaluator):
    """Outputs of all replicas, gathered for the task to make figures of."""

    def __init__(self, task, strategy):
        super().__init__(
            strategy.distribute_datasets_from_function(task.evaluation_dataset)
        )
        self._task = task
        self._strategy = strategy

    def eval_begin(self):
        return []

    def eval_step(self, iterator):
        outputs = self._strategy.run(
            self._task.evaluation_step, args=(next(iterator),)
        )
        return tf.nest.map_structure(
            lambda output: self._strategy.gather(output, axis=0), outputs
        )

    def eval_reduce(self, state, step_outputs):
        return [*state, step_outputs]

    def eval_end(self, batches):
        return self._task.figures(
            {
                name: np.concatenate([batch[name] for batch in batches])
                for name in batches[0]
            }
        )


def train_and_evaluate(
    task: Task,
    strategy: tf.distribute.Strategy,
    training: TrainingConfig,
    run: RunConfig,
    records: RunRecords,
) -> dict[str, float]:
    """Trains a task, from where its work directory stands, to a preset.

    Leaves in `run.workdir`: `checkpoints/`, `summaries/` (TensorBoard),
    `metrics.jsonl` and, at the end, `preset/`.

    Args:
        task: What is learned.
        strategy: Where it is learned.
        training: How it is learned.
        run: Where files go, and how often.
        records: Takes the figures seen while running.

    Returns:
        The figures of the last evaluation.

    Raises:
        Interrupted: After SIGINT or SIGTERM, once a checkpoint is saved.
        FloatingPointError: The loss or a gradient is not finite. The last
            checkpoint is from before.
        training.interruption.WorkerLost: Another worker is gone.
        training.interruption.RunFailed: TensorFlow could not read, write or
            compute something. The last checkpoint is kept.
        ValueError: An interval or a part does not divide what it should, or
            no checkpoint can be read.
    """
    if training.jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "`jit_compile` works on one replica (a TPU compiles without it). "
            f"Received: jit_compile=True with {strategy.num_replicas_in_sync} "
            "replicas"
        )
    size = replica_batch_size(
        training.global_batch_size, strategy.num_replicas_in_sync
    )
    if training.accumulation_steps < 1 or size % training.accumulation_steps:
        raise ValueError(
            "`accumulation_steps` must divide the batch of each replica, "
            f"{size}. Received: {training.accumulation_steps}"
        )
    for name in ("evaluation_interval", "checkpoint_interval"):
        if getattr(run, name) % run.log_interval:
            raise ValueError(
                f"`{name}` must be a multiple of log_interval="
                f"{run.log_interval}. Received: {getattr(run, name)}"
            )
    keras.utils.set_random_seed(training.seed)
    with strategy.scope():
        task.build()
        optimizer = build_optimizer(training, task.model.trainable_variables)
    if strategy.num_replicas_in_sync > 1:
        draw_for_each_replica(task.model)
    trainer = Trainer(task, optimizer, strategy, training)
    global_step = optimizer.iterations.value
    stop = SignalStop(strategy)

    def step():
        return int(global_step.numpy())

    def check(outputs):
        bad = [k for k, v in outputs.items() if not np.isfinite(v)]
        if bad:
            raise FloatingPointError(
                f"{' and '.join(bad)} not finite at step {step()}. The "
                "last checkpoint is from before; start anew with a smaller "
                "learning_rate or a longer warm-up"
            )

    def stop_if_asked(outputs):
        if signum := stop.received():
            controller.save_checkpoint()
            raise Interrupted(signum, step())

    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(strategy))
        # Orbit prints every line it logs; `records` shows the same figures.
        stack.enter_context(
            contextlib.redirect_stdout(
                stack.enter_context(open(os.devnull, "w"))
            )
        )
        controller = orbit.Controller(
            global_step=global_step,
            trainer=trainer,
            evaluator=_Evaluator(task, strategy),
            strategy=strategy,
            train_actions=[
                check,
                lambda outputs: records.trained(step(), outputs),
                stop_if_asked,
            ],
            eval_actions=[lambda figures: records.evaluated(step(), figures)],
            # Ends each inner loop at a multiple of the interval, also after
            # a resume from between two.
            steps_per_loop=lambda now: _until_next(now, run.log_interval),
            checkpoint_manager=_checkpoint_manager(
                task, optimizer, run, records, stack
            ),
            summary_dir=(
                str(run.workdir / "summaries") if records.chief else None
            ),
        )
        first_step = step()
        trainer.train_dataset = strategy.distribute_datasets_from_function(
            # Told that there is always a next batch, workers do not ask each
            # other whether there is one.
            lambda context: task.training_dataset(context, first_step).apply(
                tf.data.experimental.assert_cardinality(
                    tf.data.INFINITE_CARDINALITY
                )
            )
        )
        stack.enter_context(stop.listening())
        stack.enter_context(records.running(first_step))
        figures = None
        while step() < training.steps:
            interval = _until_next(step(), run.evaluation_interval)
            controller.train(
                min(step() + interval, training.steps),
                checkpoint_at_completion=False,
            )
            figures = controller.evaluate()
        controller.save_checkpoint()
        if records.chief:
            _save_preset(task, records)
    return figures or {}


def _until_next(step, interval):
    """Updates from `step` to the next multiple of `interval`."""
    return interval - step % interval


def _checkpoint_manager(task, optimizer, run, records, stack):
    """Checkpoints of the raw variables; seeds of dropout are among them."""
    folder = run.workdir / "checkpoints"
    return RestoredCheckpointManager(
        tf.train.Checkpoint(
            model=[variable.value for variable in task.model.variables],
            optimizer=[variable.value for variable in optimizer.variables],
        ),
        source=folder,
        directory=(
            folder
            if records.chief
            else pathlib.Path(
                stack.enter_context(tempfile.TemporaryDirectory())
            )
        ),
        step_counter=optimizer.iterations.value,
        say=records.say,
        max_to_keep=run.keep_checkpoints,
        checkpoint_interval=run.checkpoint_interval,
    )


def _save_preset(task, records):
    """Writes the preset so that it is there whole or not at all."""
    partial = records.workdir / "preset.partial"
    shutil.rmtree(partial, ignore_errors=True)
    task.save(partial)
    records.describe(partial)
    os.replace(partial, records.workdir / "preset")
