"""Workers as processes: started, stopped and restarted together."""

import contextlib
import dataclasses
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from training.engine.cli import EX_TEMPFAIL

_POLL_INTERVAL = 0.1  # seconds
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process to run.

    Attributes:
        name: What messages call it.
        command: The program and its arguments.
        environment: Variables beside those of this process.
        log: File that its output is appended to; None is this process's
            own output.
        remote: Whether the process only stands for one elsewhere, as ssh
            does, which passes no signals on. That one is stopped by the end
            of its input.
    """

    name: str
    command: Sequence[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    log: pathlib.Path | None = None
    remote: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestartConfig:
    """When workers are started again."""

    max_restarts: int = 10
    """Restarts before giving up."""
    restart_delay: float = 10.0
    """Seconds before a restart."""
    grace_period: float = 120.0
    """Seconds to end in, once a worker was lost or a signal came; then
    workers are killed. More than log_interval updates and a checkpoint take."""


def is_temporary(status: int) -> bool:
    """Whether the same command may succeed after this exit status.

    So it may after a death by a signal (128 and more, as shells count; with a
    checkpoint or without), after a lost connection (ssh's 255) and where
    another worker was lost (75).
    """
    return status == EX_TEMPFAIL or status >= 128


class Supervisor:
    """Runs the workers of one training run until they are done.

    None can go on without the others. So when one ends with an error they all
    end, and where the error is a temporary one they all start again. SIGTERM,
    SIGINT and SIGHUP (as a SIGTERM) are passed on; then nothing starts again.

    Args:
        workers: What to run.
        config: When it starts again.
    """

    def __init__(self, workers: Sequence[Worker], config: RestartConfig):
        self._workers = workers
        self._config = config
        self._processes = []
        self._received = []  # signals not passed on yet
        self._signum = 0  # the last one passed on

    def run(self) -> int:
        """Runs the workers, in the main thread of this process.

        Returns:
            The exit status of the whole: 0 when all workers are done, 128 and
            the signal's number when one stopped them, 75 when no restart is
            left, else the status of the worker whose error no restart mends.
        """
        config = self._config
        with self._receiving_signals():
            for restart in range(config.max_restarts + 1):
                if restart:
                    _say(
                        f"restart {restart} of {config.max_restarts} in "
                        f"{config.restart_delay:g} s"
                    )
                    self._wait(lambda: self._signum, config.restart_delay)
                if not self._signum:
                    status = self._run_once()
                    if not is_temporary(status):
                        return status
                if self._signum:
                    return 128 + self._signum
        _say("no restart is left; the same command continues")
        return EX_TEMPFAIL

    def _run_once(self):
        self._processes = []
        try:
            for worker in self._workers:
                self._processes.append(_Process(worker))
            self._wait(
                lambda: (
                    self._ended()
                    or self._signum
                    or any(process.status for process in self._processes)
                )
            )
            self._wait(self._ended, self._config.grace_period)
        finally:
            for process in self._processes:
                process.kill()
        self._wait(self._ended)
        failed = [process for process in self._processes if process.status]
        for process in failed:
            _say(process)
        # An error that no restart mends says more than what it did to others.
        statuses = sorted((p.status for p in failed), key=is_temporary)
        return statuses[0] if statuses else 0

    def _ended(self):
        return all(process.status is not None for process in self._processes)

    def _wait(self, until: Callable[[], bool], seconds: float = math.inf):
        """Passes signals on until a condition holds or time is up."""
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
            while self._received:
                self._signum = self._received.pop(0)
                for process in self._processes:
                    process.stop(self._signum)

    @contextlib.contextmanager
    def _receiving_signals(self):
        previous = {
            signum: signal.signal(
                signum, lambda number, frame: self._received.append(number)
            )
            for signum in _SIGNALS
            if signal.getsignal(signum) != signal.SIG_IGN  # as nohup does
        }
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)


class _Process:
    """A running worker."""

    def __init__(self, worker):
        self._worker = worker
        with contextlib.ExitStack() as stack:
            output = None
            if worker.log is not None:
                worker.log.parent.mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(open(worker.log, "ab"))
            self._process = subprocess.Popen(
                worker.command,
                env={**os.environ, **worker.environment},
                stdin=subprocess.PIPE if worker.remote else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A terminal's Ctrl-C goes to this process alone, which passes
                # it on: workers that see it twice would not save.
                process_group=0,
            )

    @property
    def status(self) -> int | None:
        """The exit status, as shells count; None while it runs."""
        status = self._process.poll()
        return status if status is None or status >= 0 else 128 - status

    def stop(self, signum):
        if self._worker.remote and not self._process.stdin.closed:
            self._process.stdin.close()
        else:
            # A training verb saves at SIGTERM, but not when its terminal goes.
            self._process.send_signal(
                signal.SIGTERM if signum == signal.SIGHUP else signum
            )

    def kill(self):
        if self.status is not None:
            return
        if self._worker.remote:
            # What runs there kills itself after its own grace period.
            self._process.stdin.close()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def __str__(self):
        log = f", see {self._worker.log}" if self._worker.log else ""
        return f"{self._worker.name} ended with status {self.status}{log}"


def _say(message):
    print(f"training.launch: {message}", file=sys.stderr, flush=True)
