"""The one training loop: Orbit, for every task and every strategy."""

import abc
import contextlib
import os
import pathlib
import shutil
import signal
import tempfile

import keras
import numpy as np
import orbit
import tensorflow as tf

from training.configs import RunConfig, TrainingConfig
from training.optimizer import build_optimizer
from training.records import RunRecords


class Interrupted(Exception):
    """A signal stopped the run, which has saved where it was.

    Attributes:
        signum: Integer, the signal.
        step: Integer, the last update made.
    """

    def __init__(self, signum, step):
        self.signum = signum
        self.step = step
        super().__init__(
            f"stopped by {signal.Signals(signum).name} after step {step}; "
            "the same command continues from there"
        )


class Task(abc.ABC):
    """What the loop needs to know about what is learned.

    `model` is a Keras model or layer, `None` before `build`.
    """

    model = None

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

    @abc.abstractmethod
    def loss(self, batch):
        """This replica's share of the global batch's mean loss.

        A scalar, called in replica context: the shares of all replicas add up
        to the mean loss over the global batch.
        """

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


class _Trainer(orbit.StandardTrainer):
    """Updates of a task's model; reports the mean loss since the last time."""

    def __init__(self, task, optimizer, strategy, jit_compile):
        super().__init__(train_dataset=None)
        self._task = task
        self._optimizer = optimizer
        self._strategy = strategy
        self._variables = task.model.trainable_variables
        if jit_compile:
            self._gradients = tf.function(self._gradients, jit_compile=True)
        with strategy.scope():
            self._loss_sum = tf.Variable(0.0, trainable=False)
            self._steps = tf.Variable(0.0, trainable=False)

    def _gradients(self, batch):
        with tf.GradientTape() as tape:
            loss = self._task.loss(batch)
        values = [variable.value for variable in self._variables]
        return loss, tape.gradient(loss, values)

    def _update(self, batch):
        loss, gradients = self._gradients(batch)
        self._optimizer.apply(gradients, self._variables)
        return loss

    def train_loop_begin(self):
        self._loss_sum.assign(0.0)
        self._steps.assign(0.0)

    def train_step(self, iterator):
        losses = self._strategy.run(self._update, args=(next(iterator),))
        loss = self._strategy.reduce(
            tf.distribute.ReduceOp.SUM, losses, axis=None
        )
        self._loss_sum.assign_add(tf.cast(loss, tf.float32))
        self._steps.assign_add(1.0)

    def train_loop_end(self):
        return {
            "loss": float(self._loss_sum / self._steps),
            "gradient_norm": float(self._optimizer.gradient_norm.numpy()),
            # The next update's.
            "learning_rate": float(self._optimizer.learning_rate),
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


class _SignalStop:
    """Turns SIGINT and SIGTERM into a stop after the current updates."""

    def __init__(self, strategy):
        self._strategy = strategy
        self._received = 0
        self._gather = tf.function(self._gather)

    @contextlib.contextmanager
    def listening(self):
        previous = {
            signum: signal.signal(signum, self._receive)
            for signum in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def _receive(self, signum, frame):
        if self._received == signum:
            # Asked twice: do not wait for the updates to end.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        self._received = signum

    def received(self):
        """The signal that any worker received, or 0.

        Workers must leave the loop after the same update, so all of them
        ask, each time.
        """
        values = self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([self._received])
        )
        return int(tf.reduce_max(self._gather(values)))

    def _gather(self, values):
        # `gather` takes what comes out of `run`.
        return self._strategy.gather(
            self._strategy.run(tf.identity, args=(values,)), axis=0
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
    """
    if training.jit_compile and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "`jit_compile` works on one replica (a TPU compiles without it). "
            f"Received: jit_compile=True with {strategy.num_replicas_in_sync} "
            "replicas"
        )
    keras.utils.set_random_seed(training.seed)
    with strategy.scope():
        task.build()
        optimizer = build_optimizer(training, task.model.trainable_variables)
    trainer = _Trainer(task, optimizer, strategy, training.jit_compile)
    global_step = optimizer.iterations.value
    stop = _SignalStop(strategy)

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
                task, optimizer, run, records.chief, stack
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


def _checkpoint_manager(task, optimizer, run, chief, stack):
    """Checkpoints of the raw variables; seeds of dropout are among them.

    Every worker must take part in a save, but one alone may write into the
    work directory: the others write into a folder that is thrown away.
    """
    folder = run.workdir / "checkpoints"
    checkpoint = tf.train.Checkpoint(
        model=[variable.value for variable in task.model.variables],
        optimizer=[variable.value for variable in optimizer.variables],
    )
    latest = tf.train.latest_checkpoint(folder)
    return tf.train.CheckpointManager(
        checkpoint,
        directory=(
            folder
            if chief
            else stack.enter_context(tempfile.TemporaryDirectory())
        ),
        max_to_keep=run.keep_checkpoints,
        step_counter=optimizer.iterations.value,
        checkpoint_interval=run.checkpoint_interval,
        init_fn=(lambda: checkpoint.restore(latest)) if latest else None,
    )


def _save_preset(task, records):
    """Writes the preset so that it is there whole or not at all."""
    partial = records.workdir / "preset.partial"
    shutil.rmtree(partial, ignore_errors=True)
    task.save(partial)
    records.describe(partial)
    os.replace(partial, records.workdir / "preset")
