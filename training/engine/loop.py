"""A training run: the one Orbit loop for every task and every strategy."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Callable

import keras
import numpy as np
import orbit
import tensorflow as tf

from keras_fixedhead.diagnostics import AttentionSummaries
from training.curves import draw_curves
from training.engine.cli import Interrupted, RunFailed
from training.engine.configs import (
    ExperimentConfig,
    RunConfig,
    TrainingConfig,
    check_positive,
)
from training.engine.optimizer import build_optimizer
from training.engine.preset import write_preset
from training.engine.records import RunRecords
from training.engine.recovery import (
    RestoredCheckpointManager,
    SignalStop,
    explained,
)
from training.engine.strategy import (
    distribute,
    draw_for_each_replica,
    get_strategy,
    replica_batch_size,
    worker_number,
)
from training.engine.task import SequenceTask
from training.engine.trainer import Evaluator, Trainer


def run_task(
    config: ExperimentConfig, make_task: Callable[..., SequenceTask]
) -> dict[str, float]:
    """Trains, or continues, the run in `config.run.workdir`.

    Returns the last held-out metrics, none if the run was already finished.
    """
    run, training = config.run, config.training
    # TensorFlow must know the other workers before its first operation.
    strategy = get_strategy(run.strategy)
    worker, _ = worker_number(strategy)
    records = RunRecords(run.workdir, training.steps, chief=worker == 0)
    records.say(f"reading {run.data}")
    task = make_task(config)
    records.claim(
        {
            "model": dataclasses.asdict(config.model),
            "training": dataclasses.asdict(training),
            **task.settings,
        }
    )
    preset = run.workdir / "preset"
    if preset.exists():
        records.say(f"finished before: {preset}")
        return {}
    for warning in task.warnings:
        records.say(f"warning: {warning}")
    try:
        figures = train_and_evaluate(task, strategy, training, run, records)
    except RunFailed as failed:
        task.check_data(failed.__cause__)
        raise
    if records.chief:
        draw_curves([run.workdir], run.workdir / "curves.png")
    records.say(f"wrote {preset}")
    return figures


def train_and_evaluate(
    task: SequenceTask,
    strategy: tf.distribute.Strategy,
    training: TrainingConfig,
    run: RunConfig,
    records: RunRecords,
) -> dict[str, float]:
    """Trains a task to a preset, or continues; returns the last metrics.

    Raises `Interrupted` after SIGINT or SIGTERM, once a checkpoint is saved;
    `FloatingPointError`, `WorkerLost` and `RunFailed`.
    """
    _check(strategy, training, run)
    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(strategy))
        keras.utils.set_random_seed(training.seed)
        with strategy.scope():
            task.build()
            # Such as "GPU:0, GPU:1".
            devices = ", ".join(
                name.rpartition("device:")[2]
                for name in strategy.extended.worker_devices
            )
            records.say(
                f"model: {task.model.count_params():,} parameters on {devices}"
            )
            optimizer = build_optimizer(
                training, task.model.trainable_variables
            )
        if strategy.num_replicas_in_sync > 1:
            draw_for_each_replica(task.model)
        global_step = optimizer.iterations.value
        stop = SignalStop(strategy)
        report_attention = _attention_reports(task, run, records, stack)

        def step():
            return int(global_step.numpy())

        def after_updates(outputs):
            bad = [k for k, v in outputs.items() if not np.isfinite(v)]
            if bad:
                raise FloatingPointError(
                    f"{' and '.join(bad)} not finite at step {step()}. The "
                    "last checkpoint is from before; start again in another "
                    "`workdir` with a smaller learning_rate or a longer "
                    "warm-up"
                )
            records.trained(step(), outputs)
            report_attention(step())
            if signum := stop.received():
                controller.save_checkpoint()
                raise Interrupted(signum, step())

        # Orbit prints every line it logs; `records` shows the same metrics.
        nowhere = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        trainer = Trainer(task, optimizer, strategy, run)
        controller = orbit.Controller(
            global_step=global_step,
            trainer=trainer,
            evaluator=Evaluator(task, strategy),
            strategy=strategy,
            train_actions=[after_updates],
            eval_actions=[lambda figures: records.evaluated(step(), figures)],
            # Ends each inner loop at a multiple of the interval, also after
            # resuming between two.
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
            # With infinite cardinality, workers do not ask each other whether
            # there is a next batch.
            lambda context: task.training_dataset(context, first_step).apply(
                tf.data.experimental.assert_cardinality(
                    tf.data.INFINITE_CARDINALITY
                )
            ),
        )
        # An evaluation at step 0 shows what training gains. A checkpoint is
        # saved before the evaluation after the same update, which may be lost.
        evaluate_first = (
            first_step == training.steps
            or not first_step % run.evaluation_interval
        )
        stack.enter_context(stop.listening())
        stack.enter_context(records.running(first_step))
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

            def save(folder):
                task.save(folder)
                records.describe(folder)
                task.write_cards(folder, strategy.num_replicas_in_sync)

            write_preset(run.workdir / "preset", task.model, save)
    return figures


def _check(strategy, training, run):
    replicas = strategy.num_replicas_in_sync
    if run.jit_compile and replicas > 1:
        raise ValueError(
            "`jit_compile` works on one replica (a TPU compiles without it). "
            f"Received: jit_compile=True with {replicas} replicas"
        )
    if run.packed and isinstance(strategy, tf.distribute.TPUStrategy):
        raise ValueError(
            "`packed` must be False on a TPU: pass --no_packed. "
            "Received: packed=True"
        )
    size = replica_batch_size(training.global_batch_size, replicas)
    if run.accumulation_steps < 1 or size % run.accumulation_steps:
        raise ValueError(
            "`accumulation_steps` must divide the batch of each replica, "
            f"{size}. Received: {run.accumulation_steps}"
        )
    check_positive(log_interval=run.log_interval)
    for name in ("evaluation", "checkpoint", "attention"):
        interval = getattr(run, f"{name}_interval")
        if interval is not None and (
            interval < 1 or interval % run.log_interval
        ):
            raise ValueError(
                f"`{name}_interval` must be a positive multiple of "
                f"`log_interval`. Received: {name}_interval={interval}, "
                f"log_interval={run.log_interval}"
            )


def _attention_reports(task, run, records, stack):
    """Returns a function to call with the number of the updates made."""
    if run.attention_interval is None or not records.chief:
        return lambda step: None
    check_positive(attention_sequences=run.attention_sequences)
    dataset = task.evaluation_dataset(tf.distribute.InputContext())
    # Only the first batch: each is padded to a length of its own.
    model, inputs = task.attention_inputs(next(iter(dataset)))
    inputs = tf.nest.map_structure(
        lambda x: x[: run.attention_sequences], inputs
    )
    summaries = AttentionSummaries(
        run.workdir / "summaries" / "attention", model, inputs
    )
    stack.callback(summaries.close)

    def report(step):
        if not step % run.attention_interval:
            summaries.write(step)

    return report


def _until_next(step, interval):
    """Returns the updates from `step` to the next multiple of `interval`."""
    return interval - step % interval


def _checkpoint_manager(task, optimizer, run, records, stack):
    folder = directory = run.workdir / "checkpoints"
    if not records.chief:
        directory = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
    return RestoredCheckpointManager(
        # The raw variables, which include the seeds of dropout.
        tf.train.Checkpoint(
            model=[variable.value for variable in task.model.variables],
            optimizer=[variable.value for variable in optimizer.variables],
        ),
        source=folder,
        directory=directory,
        step_counter=optimizer.iterations.value,
        say=records.say,
        max_to_keep=run.keep_checkpoints,
        checkpoint_interval=run.checkpoint_interval,
    )
