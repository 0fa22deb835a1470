"""Makes the missing runs of a plan in worker processes.

Workers stay from run to run, since imports take long. One that dies takes its
run with it, and another replaces it.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.synchronize
import os
import pathlib
import platform
import signal
import time
import traceback
from collections.abc import Iterator

import keras
import rich.console
import rich.progress

from keras_fixedhead.files import write_json
from training.corpus.folder import read_stream
from training.engine.cli import held
from training.reproduce import runs
from training.reproduce.plan import Plan, Run
from training.reproduce.scales import Scale

# How long workers may take to save and leave.
_LEAVE_SECONDS = 120


@contextlib.contextmanager
def claimed(workdir: pathlib.Path, settings: dict) -> Iterator[None]:
    """Creates and holds a work directory, so that no other process uses it.

    `settings`, as JSON values, determine the runs. A directory of other
    settings is an error that names them.
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
    """Makes the missing runs on the stream in the folder `data`.

    `workers` processes share out the CPUs; None is one per CPU, or one if
    there is a GPU. After `minutes`, runs save their state and stop. Returns
    the signal that stopped the runs, or None.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if workers is None:
        # Not asked of a library, which would take hold of the GPU.
        gpu = any(pathlib.Path("/dev").glob("nvidia[0-9]*"))
        workers = 1 if gpu else len(cpus)
    shares = [frozenset(cpus[i::workers]) for i in range(workers)]
    if workers == 1:
        shares = [None]
    deadline = None if minutes is None else time.time() + 60 * minutes
    stop = multiprocessing.get_context("spawn").Event()
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
            _Pool(plan, data, shares, stop, deadline, board).make_runs()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return received[0] if received else None


@dataclasses.dataclass(eq=False)
class _Worker:
    process: multiprocessing.process.BaseProcess
    connection: multiprocessing.connection.Connection
    cpus: frozenset[int] | None
    ready: bool = False
    run: Run | None = None


@dataclasses.dataclass
class _Pool:
    plan: Plan
    data: pathlib.Path
    # The CPUs of the workers that are not started; None is all.
    free: list[frozenset[int] | None]
    stop: multiprocessing.synchronize.Event
    deadline: float | None
    board: "_Board"
    workers: list[_Worker] = dataclasses.field(default_factory=list)

    def make_runs(self):
        """Hands out runs until all are made or it is time to stop."""
        while True:
            if self.deadline is not None and time.time() > self.deadline:
                self.stop.set()
            running = [w.run for w in self.workers if w.run is not None]
            for run in self.plan.waiting():
                if run not in running and not self.stop.is_set():
                    self._hand_out(run)
            if all(w.run is None for w in self.workers):
                break
            self._listen()
        for w in self.workers:
            w.connection.close()
            w.process.join(_LEAVE_SECONDS)

    def _hand_out(self, run):
        """Gives a run to an idle worker, or to a new one if there may be."""
        idle = [w for w in self.workers if w.run is None]
        if not idle and not self.free:
            return
        chosen = idle[0] if idle else self._start(self.free.pop(0))
        rate = None
        if run.cell.contexts is None:
            rate = run.rate or self.plan.rate(run.cell)
        chosen.run = run
        self.board.started(run)
        chosen.connection.send((run, rate, self.plan.folder(run)))

    def _start(self, cpus):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=work,
            args=(theirs, self.stop, cpus, self.plan.scale, self.data),
            daemon=True,
        )
        process.start()
        theirs.close()
        self.workers.append(_Worker(process, ours, cpus))
        return self.workers[-1]

    def _listen(self):
        busy = {w.connection: w for w in self.workers if w.run is not None}
        for connection in multiprocessing.connection.wait([*busy], timeout=1.0):
            w = busy[connection]
            try:
                kind, *rest = connection.recv()
            except (EOFError, OSError):
                self._bury(w)
                continue
            if kind == "ready":
                w.ready = True
            elif kind == "updates":
                self.board.advanced(w.run, *rest)
            else:
                self.board.ended(w.run, kind, *rest)
                w.run = None

    def _bury(self, dead):
        """Records the run of a dead worker as failed."""
        self.workers.remove(dead)
        self.free.append(dead.cpus)
        dead.process.join(_LEAVE_SECONDS)
        code = dead.process.exitcode
        how = f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if not dead.ready:
            raise RuntimeError(f"a worker could not start: it {how}")
        message = f"its process {how}"
        folder = self.plan.folder(dead.run)
        folder.mkdir(parents=True, exist_ok=True)
        fail(folder, message)
        self.board.ended(dead.run, "failed", message)


class _Board:
    """Shows progress: bars on a terminal, elsewhere a line for each run."""

    def __init__(self, plan):
        self._scale = plan.scale
        self._console = rich.console.Console(stderr=True)
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        runs = [*plan.pilots, *plan.runs]
        done = sum(plan.record(run) is not None for run in runs)
        self._all = self._bar.add_task("runs", total=len(runs), completed=done)
        self._tasks = {}

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *error):
        self._bar.stop()

    def started(self, run):
        scale = self._scale
        updates = scale.steps
        if run.cell.contexts is not None:
            updates = scale.context_steps * len(scale.context_head_sizes)
        self._tasks[run.name] = self._bar.add_task(run.name, total=updates)

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


# The least time between two reports.
_REPORT_SECONDS = 1.0

# A run fails unless its nats are at most this fraction of those that token
# frequencies reach. Some runs learn no more than that from the start; one of
# them would dominate the noise, and in a trial bend the parabola to lower
# rates.
_LEARNED = 0.97


def work(
    connection: multiprocessing.connection.Connection,
    stop: multiprocessing.synchronize.Event,
    cpus: frozenset[int] | None,
    scale: Scale,
    data: pathlib.Path,
) -> None:
    """Makes the runs that arrive on a connection, until it is closed.

    It receives tuples of a `Run`, its learning rate or None, and its folder.
    It sends `("ready",)` once, `("updates", number)` now and then, and after
    each run `("finished",)`, `("failed", error)` or `("stopped",)`. Once `stop`
    is set, a run saves its state and stops. `cpus` are this process's; None is
    all.
    """
    # Ctrl-C reaches all processes; the one that hands out runs decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    # TensorFlow's logs about many models in one process would bury the bars.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    stream = read_stream(data)

    def report(updates):
        nonlocal reported
        if time.monotonic() - reported > _REPORT_SECONDS:
            connection.send(("updates", updates))
            reported = time.monotonic()

    connection.send(("ready",))
    while True:
        reported = time.monotonic()
        try:
            run, rate, folder = connection.recv()
        except EOFError:
            return
        try:
            made = _make(
                run,
                rate,
                folder,
                scale,
                stream,
                stop.is_set,
                report,
            )
            connection.send(("finished" if made else "stopped",))
        except BrokenPipeError:
            return  # the process that hands out runs is gone
        except Exception as error:
            fail(folder, f"{type(error).__name__}: {error}", error)
            connection.send(("failed", str(error)))


def fail(
    folder: pathlib.Path, message: str, error: Exception | None = None
) -> None:
    """Records in a run's folder that it failed."""
    lines = traceback.format_exception(error) if error else []
    write_json(
        folder / "failed.json",
        {"error": message, "traceback": "".join(lines), "finished": _now()},
    )


def _make(run, rate, folder, scale, stream, should_stop, report):
    """Makes a run and returns whether it is finished."""
    folder.mkdir(parents=True, exist_ok=True)
    if run.cell.contexts is not None:
        metrics = runs.fit(run.cell, scale, run.seed, should_stop, report)
    else:
        metrics = runs.train(
            run, rate, scale, stream, folder, should_stop, report
        )
    if metrics is None:
        return False
    if run.cell.contexts is None:
        least = runs.frequency_nats(stream, run.split)
        if metrics["nats"] > _LEARNED * least:
            raise ArithmeticError(
                f"it learned no more than the frequencies of tokens: "
                f"{metrics['nats']:.4f} nats, these {least:.4f}"
            )
    backend = keras.backend.backend()
    write_json(
        folder / "record.json",
        {
            "cell": run.cell.name,
            "seed": run.seed,
            "rate": rate,
            "figures": metrics,
            "finished": _now(),
            "versions": {
                "python": platform.python_version(),
                "keras": keras.__version__,
                backend: importlib.metadata.version(backend),
            },
            "hardware": _hardware(),
        },
    )
    (folder / runs.CHECKPOINT).unlink(missing_ok=True)
    return True


def _now():
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _hardware():
    kinds = {
        device.split(":")[0] for device in keras.distribution.list_devices()
    }
    if "gpu" in kinds and keras.backend.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    if kinds != {"cpu"}:
        return " ".join(sorted(kinds))
    info = pathlib.Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else ())
        if line.startswith("model name")
    ]
    cpu = names[0] if names else platform.machine()
    return f"{len(os.sched_getaffinity(0))} CPU of {cpu}"
