"""Makes the runs of a plan that are missing, in processes of their own.

Processes are kept from run to run, since imports take long; one that dies
takes its run with it, and another one takes its place.
"""

import collections
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import time

import rich.console
import rich.progress

from keras_fixedhead.files import write_json
from training.engine.lock import held
from training.reproduce import worker
from training.reproduce.plan import Plan

# How long workers may take to save and leave.
_LEAVE_SECONDS = 120


@contextlib.contextmanager
def claimed(workdir: pathlib.Path, settings: dict):
    """Holds a work directory, so that no other process makes its runs.

    Args:
        workdir: Is created if it is not there.
        settings: What decides the runs, as JSON values.

    Raises:
        ValueError: It is in use, or that of other settings; names them.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    busy = f"`workdir` {str(workdir)!r} is in use by another process"
    with held(workdir, busy):
        path = workdir / "settings.json"
        settings = json.loads(json.dumps(settings))
        if path.exists():
            recorded = json.loads(path.read_text(encoding="utf-8"))
            different = sorted(
                name
                for name in recorded.keys() | settings.keys()
                if recorded.get(name) != settings.get(name)
            )
            if different:
                raise ValueError(
                    f"`workdir` {str(workdir)!r} holds runs that differ in "
                    f"{', '.join(different)}. Choose another folder"
                )
        else:
            write_json(path, settings)
        yield


def make_runs(
    plan: Plan,
    data: pathlib.Path,
    workers: int | None,
    minutes: float | None,
) -> int | None:
    """Makes the runs that are missing.

    Args:
        plan: The runs.
        data: Folder of the stream.
        workers: Processes at a time, at most the number of CPUs, which they
            share out. None is one for each CPU, or one where there is an
            accelerator.
        minutes: After so many, runs save where they are and stop.

    Returns:
        The signal that stopped it, or None.

    Raises:
        RuntimeError: A worker could not start, or no learning rate led to a
            finite loss.
    """
    workers = workers or _default_workers()
    deadline = None if minutes is None else time.time() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    received = []

    def ask_to_stop(signum, frame):
        received.append(signum)
        stop.set()

    before = {
        signum: signal.signal(signum, ask_to_stop)
        for signum in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with _Board(plan) as board:
            _Pool(plan, data, context, stop, deadline, board).run(workers)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return received[0] if received else None


def _default_workers():
    # Nothing is imported here that would take hold of an accelerator.
    if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        return 1
    return len(os.sched_getaffinity(0))


class _Pool:
    """The workers, and which run each has."""

    def __init__(self, plan, data, context, stop, deadline, board):
        self._plan = plan
        self._data = data
        self._context = context
        self._stop = stop
        self._deadline = deadline
        self._board = board
        self._processes = {}  # by connection
        self._ready = set()
        self._runs = {}
        self._cpus = {}

    def run(self, workers):
        """Hands out runs until there are none, or it is time to stop."""
        shares = _shares(workers)
        while True:
            waiting = collections.deque(
                run
                for run in self._plan.waiting()
                if run not in self._runs.values()
            )
            idle = [c for c in self._processes if c not in self._runs]
            while waiting and not self._leaving():
                if not idle:
                    if len(self._processes) == workers:
                        break
                    taken = list(self._cpus.values())
                    idle = [
                        self._start(
                            next(s for s in shares if s not in taken)
                            if shares
                            else None
                        )
                    ]
                connection, run = idle.pop(), waiting.popleft()
                rate = None
                if run.cell.contexts is None:
                    rate = run.rate or self._plan.rate(run.cell)
                self._runs[connection] = run
                self._board.started(run)
                connection.send((run, rate, self._plan.folder(run)))
            if not self._runs:
                break
            self._listen()
        for connection, process in self._processes.items():
            connection.close()
            process.join(_LEAVE_SECONDS)

    def _leaving(self):
        return self._stop.is_set() or (
            self._deadline is not None and time.time() > self._deadline
        )

    def _start(self, cpus):
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=worker.work,
            args=(
                theirs,
                self._stop,
                self._deadline,
                cpus,
                self._plan.scale,
                self._data,
            ),
            daemon=True,
        )
        process.start()
        theirs.close()
        self._processes[ours] = process
        self._cpus[ours] = cpus
        return ours

    def _listen(self):
        for connection in multiprocessing.connection.wait(
            list(self._runs), timeout=1.0
        ):
            run = self._runs[connection]
            try:
                kind, *rest = connection.recv()
            except (EOFError, OSError):
                self._bury(connection, run)
                continue
            if kind == "ready":
                self._ready.add(connection)
            elif kind == "updates":
                self._board.advanced(run, *rest)
            else:
                del self._runs[connection]
                self._board.ended(run, kind, *rest)

    def _bury(self, connection, run):
        """Records the run of a worker that is gone as failed."""
        process = self._processes.pop(connection)
        del self._runs[connection], self._cpus[connection]
        process.join(_LEAVE_SECONDS)
        code = process.exitcode
        how = f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if connection not in self._ready:
            raise RuntimeError(f"a worker could not start: it {how}")
        message = f"its process {how}"
        folder = self._plan.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        worker.fail(folder, message)
        self._board.ended(run, "failed", message)


def _shares(workers):
    """The CPUs of each worker; nothing where one has them all."""
    cpus = sorted(os.sched_getaffinity(0))
    if workers == 1:
        return []
    return [frozenset(cpus[i::workers]) for i in range(workers)]


class _Board:
    """Progress, for people: a bar on a terminal, else a line for each run."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._console = rich.console.Console(stderr=True)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def __enter__(self):
        every = [*self._plan.pilots, *self._plan.runs]
        done = sum(self._plan.record(run) is not None for run in every)
        self._bar.start()
        self._all = self._bar.add_task("runs", total=len(every), completed=done)
        return self

    def __exit__(self, *error):
        self._bar.stop()

    def started(self, run):
        self._tasks[run.name] = self._bar.add_task(
            run.name, total=self._total(run)
        )

    def advanced(self, run, updates):
        self._bar.update(self._tasks[run.name], completed=updates)

    def ended(self, run, kind, error=None):
        self._bar.remove_task(self._tasks.pop(run.name))
        if kind == "finished":
            self._bar.advance(self._all)
        if kind == "failed" or not self._console.is_terminal:
            self._console.print(
                f"{run.name}: {kind}{f': {error}' if error else ''}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def _total(self, run):
        scale = self._plan.scale
        if run.cell.contexts is None:
            return scale.steps
        return scale.context_steps * len(scale.context_head_sizes)
