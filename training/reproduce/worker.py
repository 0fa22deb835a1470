"""The process that makes runs, one after the other."""

import datetime
import importlib.metadata
import logging
import multiprocessing.connection
import multiprocessing.synchronize
import os
import pathlib
import platform
import signal
import time
import traceback

import keras

from keras_fixedhead.files import write_json
from training.corpus.folder import read_stream
from training.reproduce import contexts, language
from training.reproduce.scales import Scale

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
        metrics = contexts.fit(run.cell, scale, run.seed, should_stop, report)
    else:
        metrics = language.train(
            run, rate, scale, stream, folder, should_stop, report
        )
    if metrics is None:
        return False
    if run.cell.contexts is None:
        least = language.frequency_nats(stream, run.split)
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
    (folder / language.CHECKPOINT).unlink(missing_ok=True)
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
