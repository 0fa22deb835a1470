"""How a run is stopped from outside, and what then becomes of it."""

import contextlib
import os
import re
import signal

import tensorflow as tf

from training.engine.errors import RunFailed, WorkerLost


@contextlib.contextmanager
def explained(strategy: tf.distribute.Strategy):
    """Turns what TensorFlow raises in the block into one of the above."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = _reason(error)
        if isinstance(error, _LOST) and _num_workers(strategy) > 1:
            raise WorkerLost(
                f"another worker was lost ({reason}); the same command on "
                "every worker continues from the last checkpoint"
            ) from error
        raise RunFailed(
            f"{reason}. Checkpoints are kept; once this is mended, the same "
            "command continues from the last one"
        ) from error


# What the workers that are left see of one that is gone.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def _reason(error):
    """What happened, without where in the graph and in which function."""
    text = re.sub(r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:.*?\]", "", error.message)
    if text.startswith("Graph execution error"):
        # The lines of Python that the operation was traced from come first,
        # or that there are none.
        text = re.split(r"\n\n|<stack traces unavailable>\n", text)[-1]
    text = re.sub(
        r"^Error in user-defined function .*? iterator: \S+: ", "", text
    )
    return text.strip().partition("\n")[0] or type(error).__name__


def _num_workers(strategy):
    resolver = getattr(strategy, "cluster_resolver", None)
    return resolver.cluster_spec().num_tasks("worker") if resolver else 1


class SignalStop:
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
