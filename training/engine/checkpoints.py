"""Checkpoints of a run: written by one worker, restored past damaged ones."""

import pathlib
import re
import shutil
from collections.abc import Callable

import tensorflow as tf


class RestoredCheckpointManager(tf.train.CheckpointManager):
    """A manager of variables that are what the newest checkpoint holds.

    Every worker must take part in a save, but one alone may write into the
    folder of the run: the others write into one that is thrown away, and
    restore from that of the run like the chief.

    Args:
        checkpoint: The `tf.train.Checkpoint` of the run's variables.
        source: Folder of the run's checkpoints; restored from at once.
        directory: Folder to write to: `source`, or another.
        step_counter: Integer variable of `checkpoint`, the updates made.
        say: Called with a line about each damaged checkpoint.
        **kwargs: As in `tf.train.CheckpointManager`.

    Raises:
        ValueError: There are checkpoints, and none can be read.
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


def _steps(folder):
    names = (re.fullmatch(r"ckpt-(\d+)\.index", p.name) for p in _files(folder))
    return [int(name[1]) for name in names if name]


def _files(folder):
    return folder.iterdir() if folder.exists() else ()


def _restore_newest(checkpoint, folder, say):
    damaged = []
    for step in sorted(_steps(folder), reverse=True):
        prefix = str(folder / f"ckpt-{step}")
        try:
            # Reads everything, and checks it against its checksums.
            checkpoint.restore(prefix).assert_existing_objects_matched()
        # What kind of error depends on where the damage is.
        except Exception as error:
            damaged.append(prefix)
            say(f"{prefix} is damaged, going back to the one before: {error}")
        else:
            return
    if damaged:
        raise ValueError(
            f"none of the checkpoints in {folder} can be read. Start anew in "
            "another `workdir`, or put a whole one there"
        )
