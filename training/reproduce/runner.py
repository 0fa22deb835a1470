"""Makes the missing runs of a plan, each in a process of its own."""

import concurrent.futures
import contextlib
import datetime
import functools
import importlib.metadata
import json
import logging
import math
import multiprocessing
import os
import pathlib
import platform
import queue
import signal
import time
import traceback
from collections.abc import Callable, Iterator

import keras
import rich.console
import rich.progress

from keras_fixedhead.files import write_json
from keras_fixedhead.hardware import processor
from training.corpus.folder import Stream, read_stream
from training.engine.cli import RunFailed, handling, held
from training.engine.records import differences
from training.reproduce.cells import Scale
from training.reproduce.plan import Plan, Run
from training.reproduce.runs import CHECKPOINT, fit, frequency_nats, train

_SPAWN = multiprocessing.get_context("spawn")

# A run fails unless its nats are at most this fraction of those that token
# frequencies reach: one that learned nothing would dominate the noise, and in a
# trial bend the parabola.
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
    """Makes the missing runs; see `ReproduceConfig` for the arguments.

    Returns the signal that stopped the runs, or None.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if workers is None:
        # Not asked of a library, which would take hold of the GPU.
        gpu = any(pathlib.Path("/dev").glob("nvidia[0-9]*"))
        workers = 1 if gpu else len(cpus)
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for i in range(workers):
        shares.put(cpus[i::workers])
    deadline = time.time() + 60 * (math.inf if minutes is None else minutes)
    stop = _SPAWN.Event()
    received = []

    def ask_to_stop(signum, frame):
        received.append(signum)
        stop.set()

    def make(run):
        if stop.is_set():
            return
        bar = bars.add_task(run.name, total=plan.updates(run))
        share = shares.get()
        show = functools.partial(bars.update, bar)
        outcome = _make_in_process(plan, run, data, share, stop, show)
        shares.put(share)
        bars.remove_task(bar)
        if outcome == "finished":
            bars.advance(every)
        if outcome.startswith("failed") or not console.is_terminal:
            console.out(f"{run.name}: {outcome}", highlight=False)

    console = rich.console.Console(stderr=True)
    with (
        rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as bars,
        handling({signal.SIGINT: ask_to_stop, signal.SIGTERM: ask_to_stop}),
        concurrent.futures.ThreadPoolExecutor(workers) as pool,
    ):
        runs = [*plan.pilots, *plan.runs]
        done = sum(plan.record(run) is not None for run in runs)
        every = bars.add_task("runs", total=len(runs), completed=done)
        # First the trials of learning rates, then the runs that need them.
        while not stop.is_set() and (waiting := plan.waiting()):
            left = {pool.submit(make, run) for run in waiting}
            while left:
                ended, left = concurrent.futures.wait(left, timeout=1.0)
                if time.time() > deadline:
                    stop.set()
                for future in ended:
                    future.result()
    return received[0] if received else None


def _make_in_process(plan, run, data, cpus, stop, show):
    """Returns "finished", "stopped", or "failed: " and why."""
    updates = _SPAWN.Value("q", -1)  # until the process has started
    work = (plan, run, plan.rate(run), data, cpus, stop, updates)
    process = _SPAWN.Process(target=_work, args=work, daemon=True)
    process.start()
    while process.is_alive():
        process.join(timeout=1.0)
        show(completed=max(updates.value, 0))
    code = process.exitcode
    if code:
        how = f"ended with status {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if updates.value < 0:
            stop.set()
            raise RunFailed(f"a run could not start: its process {how}")
        record_failure(plan.folder(run), f"its process {how}")
    if failure := plan.failure(run):
        return f"failed: {failure['error']}"
    return "stopped" if plan.record(run) is None else "finished"


def _work(plan, run, rate, data, cpus, stop, updates):
    """Makes a run, or records that it failed, in a process of its own."""
    # Ctrl-C reaches all processes; the one that started this one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, cpus)
    # TensorFlow's logs about many models would bury the bars.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    stream = read_stream(data)
    parent = multiprocessing.parent_process()
    updates.value = 0

    def should_stop():
        return stop.is_set() or not (parent and parent.is_alive())

    def report(number):
        updates.value = number

    folder = plan.folder(run)
    try:
        make_run(run, rate, folder, plan.scale, stream, should_stop, report)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        record_failure(folder, message, traceback.format_exc())


def record_failure(folder: pathlib.Path, message: str, lines: str = "") -> None:
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
) -> None:
    """Makes a run and, unless it was stopped, records it; see `runs.train`."""
    folder.mkdir(parents=True, exist_ok=True)
    if run.cell.contexts:
        metrics = fit(run.cell, scale, run.seed, should_stop, report)
    else:
        metrics = train(run, rate, scale, stream, folder, should_stop, report)
    if metrics is None:
        return
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
    return processor()
