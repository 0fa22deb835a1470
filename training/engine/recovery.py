"""How a run stops and continues: signals, errors, checkpoints."""

import contextlib
import os
import pathlib
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from training.engine.cli import RunFailed, WorkerLost, handling
from training.engine.strategy import worker_number

# What the remaining workers see when one is gone.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@contextlib.contextmanager
def explained(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns TensorFlow's errors into `WorkerLost` or `RunFailed`."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = _reason(error)
        _, workers = worker_number(strategy)
        if isinstance(error, _LOST) and workers > 1:
            raise WorkerLost(
                f"another worker was lost ({reason}); the same command on "
                "every worker continues from the last checkpoint"
            ) from error
        raise RunFailed(
            f"{reason}. Checkpoints are kept; once this is mended, the same "
            "command continues from the last one"
        ) from error


def _reason(error):
    """Returns the message without its places in the graph."""
    text = re.sub(r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:.*?\]", "", error.message)
    if text.startswith("Graph execution error"):
        # The Python lines that the operation was traced from come first.
        text = re.split(r"\n\n|<stack traces unavailable>\n", text)[-1]
    text = re.sub(
        r"^Error in user-defined function .*? iterator: \S+: ", "", text
    )
    return text.strip().partition("\n")[0] or type(error).__name__


class SignalStop:
    """Turns SIGINT and SIGTERM into a stop after the current updates."""

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        self._received = 0
        # `gather` takes outputs of `run`.
        self._gather = tf.function(
            lambda values: strategy.gather(
                strategy.run(tf.identity, args=(values,)), axis=0
            ),
            autograph=False,
        )

    def listening(self) -> contextlib.AbstractContextManager:
        """Receives signals until the block is left."""
        signals = (signal.SIGINT, signal.SIGTERM)
        return handling(dict.fromkeys(signals, self._receive))

    def _receive(self, signum, frame):
        if self._received == signum:
            # The second time, end at once.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        self._received = signum

    def received(self) -> int:
        """Returns the signal of any worker, or 0; all workers must call it."""
        values = self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([self._received])
        )
        return int(tf.reduce_max(self._gather(values)))


class RestoredCheckpointManager(tf.train.CheckpointManager):
    """Restores the newest readable checkpoint of `source`, the run's folder.

    Every worker must take part in a save; all but one write to another
    `directory`.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        source: pathlib.Path,
        directory: pathlib.Path,
        step_counter: tf.Variable,
        say: Callable[[str], None],
        **kwargs: Any,
    ):
        _restore_newest(checkpoint, source, say)
        super().__init__(
            checkpoint,
            directory,
            step_counter=step_counter,
            last_checkpoint_step=int(step_counter.numpy()),
            **kwargs,
        )

    def restore_or_initialize(self) -> None:
        """Does nothing: Orbit restores, too, but only the newest one."""


def _restore_newest(checkpoint, folder, say):
    prefixes = sorted(
        (path.with_suffix("") for path in folder.glob("ckpt-*.index")),
        key=lambda path: int(path.name.removeprefix("ckpt-")),
        reverse=True,
    )
    for prefix in prefixes:
        try:
            # Reads everything, and checks it against its checksums.
            checkpoint.restore(str(prefix)).assert_existing_objects_matched()
            return
        # The type of the error depends on where the damage is.
        except Exception as error:
            say(f"{prefix} is damaged, going back to the one before: {error}")
    if prefixes:
        raise ValueError(
            f"none of the checkpoints in {folder} can be read. Start again in "
            "another `workdir`, or restore a whole checkpoint"
        )
