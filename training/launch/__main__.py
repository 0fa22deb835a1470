r"""Starts the workers of a training run, and restarts them when one is lost.

    python -m training.launch local --num_workers 2 --logs runs/novels/logs \
        -- python -m training.pretrain --strategy multi_worker ...

When a worker is lost, all workers end and start again together.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import tyro

from training.engine import cli
from training.engine.cli import exit_status
from training.engine.configs import check_at_least

_PROG = "training.launch"
_POLL_INTERVAL = 0.1  # seconds
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass
class Worker:
    """A process, whose output goes to `log` or, without one, to this one's."""

    name: str
    command: Sequence[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    log: pathlib.Path | None = None

    def start(self) -> subprocess.Popen:
        log = open(self.log, "ab") if self.log else contextlib.nullcontext()
        with log as output:
            return subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C reaches this process alone, which passes it on: a
                # worker that receives it twice ends without a checkpoint.
                process_group=0,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestartConfig:
    """When workers restart."""

    max_restarts: int = 10
    """Restarts before giving up."""
    restart_delay: float = 10.0
    """Seconds before a restart."""
    grace_period: float = 120.0
    """Seconds that workers have to end after one was lost or a signal came;
    then they are killed. Allow for log_interval updates and a checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig(RestartConfig):
    """Several workers on this machine, over loopback, without its GPUs."""

    num_workers: int
    """Workers to start."""
    logs: pathlib.Path
    """Folder for the output of all workers but the first."""

    def workers(self, command: list[str]) -> list[Worker]:
        """Returns workers that reach each other on free ports."""
        check_at_least(1, num_workers=self.num_workers)
        self.logs.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            sockets = [
                stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                for _ in range(self.num_workers)
            ]
            addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
        workers = []
        for index in range(self.num_workers):
            task = {"type": "worker", "index": index}
            tf_config = {"cluster": {"worker": addresses}, "task": task}
            environment = {
                "TF_CONFIG": json.dumps(tf_config),
                # Each worker would reserve the memory of all GPUs.
                "CUDA_VISIBLE_DEVICES": "-1",
            }
            # The first worker reports on this terminal.
            log = self.logs / f"worker_{index}.log" if index else None
            workers.append(Worker(f"worker {index}", command, environment, log))
        return workers


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerConfig(RestartConfig):
    """One worker, whose TF_CONFIG you or a cluster have set."""

    def workers(self, command: list[str]) -> list[Worker]:
        return [Worker("the worker", command)]


def is_temporary(status: int) -> bool:
    """Whether the same command may succeed after this exit status."""
    return status == os.EX_TEMPFAIL or status >= 128


class Supervisor:
    """Runs the workers of one training run until they are done.

    When one ends with an error, all end; if it is temporary, all start again.
    Signals (SIGHUP as SIGTERM) are passed on, and then none restarts.
    """

    def __init__(self, workers: Sequence[Worker], config: RestartConfig):
        self._workers = workers
        self._config = config
        self._processes: list[subprocess.Popen] = []
        self._received: list[int] = []  # signals not passed on yet
        self._signum = 0  # the last one passed on

    def run(self) -> int:
        """Runs the workers and returns the exit status of the whole run."""
        config = self._config
        handlers = {
            signum: lambda number, frame: self._received.append(number)
            for signum in _SIGNALS
            if signal.getsignal(signum) != signal.SIG_IGN  # as nohup does
        }
        with cli.handling(handlers):
            for restart in range(config.max_restarts + 1):
                if restart:
                    _say(
                        f"restart {restart} of {config.max_restarts} in "
                        f"{config.restart_delay:g} s"
                    )
                    self._wait(lambda: self._signum > 0, config.restart_delay)
                if not self._signum:
                    status = self._run_once()
                    if not is_temporary(status):
                        return status
                if self._signum:
                    return 128 + self._signum
        _say("no restart is left; the same command continues the run")
        return os.EX_TEMPFAIL

    def _run_once(self):
        self._processes.clear()
        try:
            for worker in self._workers:
                self._processes.append(worker.start())
            self._wait(
                lambda: bool(self._ended() or self._signum or self._failed())
            )
            self._wait(self._ended, self._config.grace_period)
        finally:
            for process in self._processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        self._wait(self._ended)
        failed = self._failed()
        for worker, status in failed:
            log = f", see {worker.log}" if worker.log else ""
            _say(f"{worker.name} ended with status {status}{log}")
        # A permanent error of one worker causes temporary errors of others.
        statuses = sorted((status for _, status in failed), key=is_temporary)
        return statuses[0] if statuses else 0

    def _ended(self):
        return all(process.poll() is not None for process in self._processes)

    def _failed(self):
        """Returns the workers that ended with an error, and their statuses."""
        return [
            (worker, exit_status(process.returncode))
            for worker, process in zip(self._workers, self._processes)
            if process.poll()
        ]

    def _wait(self, until, seconds=math.inf):
        """Passes signals on until a condition holds or time is up."""
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
            while self._received:
                self._signum = self._received.pop(0)
                # A training verb saves at SIGTERM, but not at SIGHUP.
                hangup = self._signum == signal.SIGHUP
                sent = signal.SIGTERM if hangup else self._signum
                for process in self._processes:
                    process.send_signal(sent)


def _say(message):
    print(f"{_PROG}: {message}", file=sys.stderr, flush=True)


def parse(args: list[str]) -> tuple[LocalConfig | WorkerConfig, list[str]]:
    """Returns the launcher and the command after `--`."""
    end = args.index("--") if "--" in args else len(args)
    config = cli.read_flags(
        Annotated[LocalConfig, tyro.conf.subcommand("local")]
        | Annotated[WorkerConfig, tyro.conf.subcommand("worker")],
        args[:end],
        _PROG,
        __doc__,
    )
    command = args[end + 1 :]
    if not command:
        cli.say_error(
            _PROG, "COMMAND is missing: {local,worker} ... -- COMMAND"
        )
        sys.exit(2)  # as for other wrong command lines
    return config, command


def main(args: list[str] | None = None) -> int:
    config, command = parse(sys.argv[1:] if args is None else args)

    def launch(config):
        return Supervisor(config.workers(command), config).run()

    return cli.run(launch, config, _PROG)


if __name__ == "__main__":
    sys.exit(main())
