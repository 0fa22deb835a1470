"""Makes the missing runs of a plan in worker processes.

Workers stay from run to run, since imports take long. One that dies takes its
run with it, and another replaces it. (`concurrent.futures` would not say which
run died, nor by which signal.)
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
from collections.abc import Callable, Iterator

import keras
import rich.console
import rich.progress

from keras_fixedhead.files import write_json
from training.corpus.folder import Stream, read_stream
from training.engine.cli import RunFailed, handling, held
from training.engine.records import differences
from training.reproduce.plan import Plan, Run
from training.reproduce.runs import CHECKPOINT, fit, frequency_nats, train
from training.reproduce.scales import Scale

_SPAWN = multiprocessing.get_context("spawn")

# How long workers may take to save and leave.
_LEAVE_SECONDS = 120
# The least time between two reports of a worker.
_REPORT_SECONDS = 1.0

# A run fails unless its nats are at most this fraction of those that token
# frequencies reach. Some runs learn no more than that from the start; one of
# them would dominate the noise, and in a trial bend the parabola to lower
# rates.
_LEARNED = 0.97


@contextlib.contextmanager
def claimed(workdir: pathlib.Path, settings: dict) -> Iterator[None]:
    """Creates and locks a work directory for runs with these settings."""
    workdir.mkdir(parents=True, exist_ok=True)
    busy = f"`workdir` {str(workdir)!r} is in use by another process"
    with held(workdir, busy):
        path = workdir / "settings.json"
        settings = json.loads(json.dumps(settings))
        if not path.exists():
            write_json(path, settings)
        recorded = json.loads(path.read_text(encoding="utf-8"))
        if recorded != settings:
            raise ValueError(
                f"`workdir` {str(workdir)!r} holds runs that differ in "
                f"{', '.join(differences(recorded, settings))}. Choose "
                "another folder"
            )
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
    received = []

    def ask_to_stop(signum, frame):
        received.append(signum)
        pool.stop.set()

    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bars:
        pool = _Pool(
            plan,
            data,
            [frozenset(cpus[i::workers]) for i in range(workers)],
            None if minutes is None else time.time() + 60 * minutes,
            bars,
        )
        with handling(
            {signal.SIGINT: ask_to_stop, signal.SIGTERM: ask_to_stop}
        ):
            pool.make_runs()
    return received[0] if received else None


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process that makes one run at a time, with a bar for the run."""

    process: multiprocessing.process.BaseProcess
    connection: multiprocessing.connection.Connection
    cpus: frozenset[int]
    ready: bool = False
    run: Run | None = None
    bar: rich.progress.TaskID | None = None


class _Pool:
    """Workers, and bars on a terminal or elsewhere a line for each run.

    `free` are the CPUs of the workers that are not started.
    """

    def __init__(
        self,
        plan: Plan,
        data: pathlib.Path,
        free: list[frozenset[int]],
        deadline: float | None,
        bars: rich.progress.Progress,
    ):
        self.stop = _SPAWN.Event()
        self._plan = plan
        self._data = data
        self._free = free
        self._deadline = deadline
        self._bars = bars
        self._workers: list[_Worker] = []
        runs = [*plan.pilots, *plan.runs]
        done = sum(plan.record(run) is not None for run in runs)
        self._all = bars.add_task("runs", total=len(runs), completed=done)

    def make_runs(self) -> None:
        """Hands out runs until all are made or it is time to stop."""
        while True:
            if self._deadline is not None and time.time() > self._deadline:
                self.stop.set()
            running = [w.run for w in self._workers if w.run is not None]
            for run in self._plan.waiting():
                if run not in running and not self.stop.is_set():
                    self._hand_out(run)
            if all(w.run is None for w in self._workers):
                break
            self._listen()
        for worker in self._workers:
            worker.connection.close()
            worker.process.join(_LEAVE_SECONDS)

    def _hand_out(self, run):
        """Gives a run to an idle worker, or to a new one if there may be."""
        idle = [w for w in self._workers if w.run is None]
        if not idle and not self._free:
            return
        worker = idle[0] if idle else self._start(self._free.pop(0))
        scale = self._plan.scale
        if run.cell.contexts:
            rate = 0.0
            updates = scale.context_steps * len(scale.context_head_sizes)
        else:
            rate = run.rate or self._plan.rate(run.cell)
            updates = scale.steps
        worker.run = run
        worker.bar = self._bars.add_task(run.name, total=updates)
        worker.connection.send((run, rate, self._plan.folder(run)))

    def _start(self, cpus):
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=work,
            args=(theirs, self.stop, cpus, self._plan.scale, self._data),
            daemon=True,
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours, cpus))
        return self._workers[-1]

    def _listen(self):
        busy = {w.connection: w for w in self._workers if w.run is not None}
        for connection in multiprocessing.connection.wait([*busy], timeout=1.0):
            worker = busy[connection]
            try:
                kind, *rest = connection.recv()
            except (EOFError, OSError):
                self._bury(worker)
                continue
            if kind == "ready":
                worker.ready = True
            elif kind == "updates":
                self._bars.update(worker.bar, completed=rest[0])
            else:
                self._end(worker, kind, *rest)

    def _bury(self, dead):
        """Records the run of a dead worker as failed."""
        self._workers.remove(dead)
        self._free.append(dead.cpus)
        dead.process.join(_LEAVE_SECONDS)
        code = dead.process.exitcode
        how = f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if not dead.ready:
            raise RunFailed(f"a worker could not start: it {how}")
        message = f"its process {how}"
        record_failure(self._plan.folder(dead.run), message)
        self._end(dead, "failed", message)

    def _end(self, worker, kind, error=None):
        name, worker.run = worker.run.name, None
        self._bars.remove_task(worker.bar)
        if kind == "finished":
            self._bars.advance(self._all)
        if kind == "failed" or not self._bars.console.is_terminal:
            self._bars.console.print(
                f"{name}: {kind}{f': {error}' if error else ''}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def work(
    connection: multiprocessing.connection.Connection,
    stop: multiprocessing.synchronize.Event,
    cpus: frozenset[int],
    scale: Scale,
    data: pathlib.Path,
) -> None:
    """Makes the runs that arrive on a connection, until it is closed.

    It receives tuples of a `Run`, its learning rate and its folder.
    It sends `("ready",)` once, `("updates", number)` now and then, and after
    each run `("finished",)`, `("failed", error)` or `("stopped",)`. Once `stop`
    is set, a run saves its state and stops. `cpus` are this process's.
    """
    # Ctrl-C reaches all processes; the one that hands out runs decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, cpus)
    # TensorFlow's logs about many models in one process would bury the bars.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    stream = read_stream(data)
    reported = 0.0

    def report(updates):
        nonlocal reported
        if time.monotonic() - reported > _REPORT_SECONDS:
            connection.send(("updates", updates))
            reported = time.monotonic()

    connection.send(("ready",))
    while True:
        try:
            run, rate, folder = connection.recv()
        except EOFError:
            return
        try:
            made = make_run(
                run, rate, folder, scale, stream, stop.is_set, report
            )
            connection.send(("finished" if made else "stopped",))
        except BrokenPipeError:
            return  # the process that hands out runs is gone
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            record_failure(folder, message, traceback.format_exc())
            connection.send(("failed", str(error)))


def record_failure(folder: pathlib.Path, message: str, lines: str = "") -> None:
    """Records in a run's folder that it failed, with a traceback's lines."""
    folder.mkdir(parents=True, exist_ok=True)
    failure = {"error": message, "traceback": lines, "finished": _now()}
    write_json(folder / "failed.json", failure)


def make_run(
    run: Run,
    rate: float,
    folder: pathlib.Path,
    scale: Scale,
    stream: Stream,
    should_stop: Callable[[], bool],
    report: Callable[[int], None],
) -> bool:
    """Makes a run and returns whether it is finished; see `runs.train`."""
    folder.mkdir(parents=True, exist_ok=True)
    if run.cell.contexts:
        metrics = fit(run.cell, scale, run.seed, should_stop, report)
    else:
        metrics = train(run, rate, scale, stream, folder, should_stop, report)
    if metrics is None:
        return False
    if not run.cell.contexts:
        least = frequency_nats(stream, run.split)
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
            "rate": rate or None,  # contexts have none
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
    (folder / CHECKPOINT).unlink(missing_ok=True)
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
