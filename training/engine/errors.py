"""Errors that end a run before it is done. Imports no TensorFlow."""

import signal


class Interrupted(Exception):
    """A signal stopped the run, which saved a checkpoint after `step`."""

    def __init__(self, signum: int, step: int):
        self.signum = signum
        self.step = step
        super().__init__(
            f"stopped by {signal.Signals(signum).name} after step {step}; "
            "the same command continues from there"
        )


class WorkerLost(Exception):
    """Another worker is gone, and this one cannot go on without it."""


class RunFailed(Exception):
    """TensorFlow failed: a shard is missing, the disk is full, ..."""
