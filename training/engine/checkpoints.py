"""Checkpoints of a run: written by one worker, restored past damaged ones."""

import pathlib
import re
import shutil
from collections.abc import Callable

import tensorflow as tf


class RestoredCheckpointManager(tf.train.CheckpointManager):
    """A checkpoint manager that restores the newest readable checkpoint.

    Restores from `source`, the run's folder, and writes to `directory`. Every
    worker must take part in a save, but only one may write into the run's
    folder: the others write into a temporary folder. `step_counter` counts the
    updates; `say` prints a line about each damaged checkpoint.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        source: pathlib.Path,
        directory: pathlib.Path,
        step_counter: tf.Variable,
        say: Callable[[str], None],
        **kwargs,
    ):
        if directory == source:
            for leftover in source.glob("ckpt-*_temp"):
                shutil.rmtree(leftover)
        _restore_newest(checkpoint, source, say)
        super().__init__(
            checkpoint,
            directory,
            step_counter=step_counter,
            last_checkpoint_step=int(step_counter.numpy()),
            **kwargs,
        )

    def restore_or_initialize(self):
        """Does nothing: Orbit restores, too, but only the newest one."""
        return None


def _restore_newest(checkpoint, folder, say):
    names = [path.name for path in folder.glob("ckpt-*.index")]
    found = (re.fullmatch(r"ckpt-(\d+)\.index", name) for name in names)
    steps = sorted((int(match[1]) for match in found if match), reverse=True)
    for step in steps:
        prefix = str(folder / f"ckpt-{step}")
        try:
            # Reads everything, and checks it against its checksums.
            checkpoint.restore(prefix).assert_existing_objects_matched()
            return
        # The type of the error depends on where the damage is.
        except Exception as error:
            say(f"{prefix} is damaged, going back to the one before: {error}")
    if steps:
        raise ValueError(
            f"none of the checkpoints in {folder} can be read. Start again in "
            "another `workdir`, or restore a whole checkpoint"
        )
