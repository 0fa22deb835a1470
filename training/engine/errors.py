"""What ends a run before it is done. Imports no TensorFlow."""

import signal


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


class WorkerLost(Exception):
    """Another worker is gone, and this one cannot go on without it."""


class RunFailed(Exception):
    """TensorFlow could not go on: a shard is gone, the disk is full, ..."""
