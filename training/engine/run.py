"""A run, from its configuration to its preset: what training verbs share."""

import dataclasses
from collections.abc import Callable

from training.curves import draw_curves
from training.engine.configs import DTYPES
from training.engine.errors import RunFailed
from training.engine.loop import train_and_evaluate
from training.engine.records import RunRecords
from training.engine.strategy import get_strategy, is_chief
from training.engine.task import Task


def run_task(config, make_task: Callable[..., Task]) -> dict[str, float]:
    """Trains, or continues, the run in `config.run.workdir`.

    Args:
        config: One of the runs of `ExperimentConfig`s.
        make_task: Makes the task, of the configuration.

    Returns:
        The last figures on held-out data; none where the run was finished
        before.

    Raises:
        ValueError: A value of the configuration or a file of the data is
            wrong, or the work directory is that of another run.
        OSError: The data folder cannot be read, or the work directory cannot
            be written.
        Interrupted, WorkerLost, RunFailed, FloatingPointError: See
            `training.engine.loop.train_and_evaluate`.
    """
    run, training = config.run, config.training
    if config.model.dtype not in DTYPES:
        raise ValueError(
            f"`dtype` must be one of {', '.join(DTYPES)}. "
            f"Received: {config.model.dtype!r}"
        )
    # TensorFlow wants to know of other workers before it computes anything.
    strategy = get_strategy(run.strategy)
    records = RunRecords(run.workdir, training.steps, is_chief(strategy))
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
