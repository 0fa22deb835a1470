"""The one training loop: Orbit, for every task and every strategy."""

import contextlib
import os
import pathlib
import tempfile

import keras
import numpy as np
import orbit
import tensorflow as tf

from training.engine.attention_reports import attention_summaries
from training.engine.checkpoints import RestoredCheckpointManager
from training.engine.configs import RunConfig, TrainingConfig
from training.engine.errors import Interrupted
from training.engine.interruption import SignalStop, explained
from training.engine.optimizer import build_optimizer
from training.engine.preset import write_preset
from training.engine.records import RunRecords
from training.engine.strategy import (
    distribute,
    draw_for_each_replica,
    replica_batch_size,
)
from training.engine.task import Task
from training.engine.trainer import Evaluator, Trainer


def train_and_evaluate(
    task: Task,
    strategy: tf.distribute.Strategy,
    training: TrainingConfig,
    run: RunConfig,
    records: RunRecords,
) -> dict[str, float]:
    """Trains a task, from where its work directory stands, to a preset.

    Leaves in `run.workdir`: `checkpoints/`, `summaries/` (TensorBoard; with
    `run.attention_interval`, what the heads do in its folder `attention/`),
    `metrics.jsonl` and, at the end, `preset/`.

    Args:
        task: What is learned.
        strategy: Where it is learned.
        training: How it is learned.
        run: How it is computed, where files go, and how often.
        records: Takes the figures seen while running.

    Returns:
        The figures of the last evaluation.

    Raises:
        Interrupted: After SIGINT or SIGTERM, once a checkpoint is saved.
        FloatingPointError: The loss or a gradient is not finite. The last
            checkpoint is from before.
        training.engine.errors.WorkerLost: Another worker is gone.
        training.engine.errors.RunFailed: TensorFlow could not read, write or
            compute something. The last checkpoint is kept.
        OSError: There is no space for the preset. The last checkpoint is
            kept.
        ValueError: An interval or a part does not divide what it should, the
            strategy cannot compute so, or no checkpoint can be read.
    """
    _check(strategy, training, run)
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(strategy))
        keras.utils.set_random_seed(training.seed)
        with strategy.scope():
            task.build()
            records.say(
                f"model: {task.model.count_params():,} parameters on "
                f"{_devices(strategy)}"
            )
            optimizer = build_optimizer(
                training, task.model.trainable_variables
            )
        if strategy.num_replicas_in_sync > 1:
            draw_for_each_replica(task.model)
        trainer = Trainer(task, optimizer, strategy, run)
        global_step = optimizer.iterations.value
        stop = SignalStop(strategy)

        def step():
            return int(global_step.numpy())

        def check(outputs):
            bad = [k for k, v in outputs.items() if not np.isfinite(v)]
            if bad:
                raise FloatingPointError(
                    f"{' and '.join(bad)} not finite at step {step()}. The "
                    "last checkpoint is from before; start anew with a "
                    "smaller learning_rate or a longer warm-up"
                )

        report_attention = _attention_reports(task, run, records, stack)

        def stop_if_asked(outputs):
            if signum := stop.received():
                controller.save_checkpoint()
                raise Interrupted(signum, step())

        # Orbit prints every line it logs; `records` shows the same figures.
        stack.enter_context(
            contextlib.redirect_stdout(
                stack.enter_context(open(os.devnull, "w"))
            )
        )
        controller = orbit.Controller(
            global_step=global_step,
            trainer=trainer,
            evaluator=Evaluator(task, strategy),
            strategy=strategy,
            train_actions=[
                check,
                lambda outputs: records.trained(step(), outputs),
                lambda outputs: report_attention(step()),
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
        trainer.train_dataset = distribute(
            strategy,
            # Told that there is always a next batch, workers do not ask each
            # other whether there is one.
            lambda context: task.training_dataset(context, first_step).apply(
                tf.data.experimental.assert_cardinality(
                    tf.data.INFINITE_CARDINALITY
                )
            ),
        )
        # What was there before the first update shows what is gained; and the
        # checkpoint after an update is older than its evaluation.
        evaluate_first = (
            first_step == training.steps
            or not first_step % run.evaluation_interval
        )
        stack.enter_context(stop.listening())
        stack.enter_context(records.running(first_step, evaluate_first))
        if not first_step:
            report_attention(0)
        if evaluate_first:
            records.say(f"evaluating at step {first_step}")
            figures = controller.evaluate()
        if first_step < training.steps:
            records.say("compiling the first update")
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
    return figures


def _devices(strategy):
    """Names the devices of this process, such as "GPU:0, GPU:1"."""
    names = strategy.extended.worker_devices
    return ", ".join(name.rpartition("device:")[2] for name in names)


def _check(strategy, training, run):
    replicas = strategy.num_replicas_in_sync
    if run.jit_compile and replicas > 1:
        raise ValueError(
            "`jit_compile` works on one replica (a TPU compiles without it). "
            f"Received: jit_compile=True with {replicas} replicas"
        )
    if run.packed and isinstance(strategy, tf.distribute.TPUStrategy):
        raise ValueError(
            "`packed` must be False on a TPU, which needs fixed shapes: pass "
            "--no_packed. Received: packed=True"
        )
    size = replica_batch_size(training.global_batch_size, replicas)
    if run.accumulation_steps < 1 or size % run.accumulation_steps:
        raise ValueError(
            "`accumulation_steps` must divide the batch of each replica, "
            f"{size}. Received: {run.accumulation_steps}"
        )
    if run.log_interval < 1:
        raise ValueError(
            f"`log_interval` must be positive. Received: {run.log_interval}"
        )
    for name in (
        "evaluation_interval",
        "checkpoint_interval",
        "attention_interval",
    ):
        interval = getattr(run, name)
        if name == "attention_interval" and interval is None:
            continue
        if interval < 1 or interval % run.log_interval:
            raise ValueError(
                f"`{name}` must be a positive multiple of `log_interval`. "
                f"Received: {name}={interval}, log_interval="
                f"{run.log_interval}"
            )


def _attention_reports(task, run, records, stack):
    """What is to be called with the number of the updates made."""
    if run.attention_interval is None or not records.chief:
        return lambda step: None
    summaries = attention_summaries(
        task, run.workdir / "summaries" / "attention", run.attention_sequences
    )
    stack.callback(summaries.close)

    def report(step):
        if not step % run.attention_interval:
            summaries.write(step)

    return report


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
    def save(folder):
        task.save(folder)
        records.describe(folder)

    write_preset(records.workdir / "preset", task.model, save)
