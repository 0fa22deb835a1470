"""The process that trains, one run after the other, as it is told."""

import datetime
import logging
import os
import pathlib
import platform
import signal
import time
import traceback

from keras_fixedhead.files import write_json

# Not more than one message in so many seconds.
_REPORT_SECONDS = 1.0

# A run must have this part, at most, of the nats that frequencies of tokens
# have: some are stuck there from the start. One of those would be the noise of
# all others, and on trial bend the parabola towards lower rates.
_LEARNED = 0.97


def work(connection, stop, deadline, cpus, scale, data) -> None:
    """Makes the runs that come through a connection, until it is closed.

    What goes back: `("ready",)` at first, `("updates", number)` now and then,
    and at the end of a run `("finished",)`, `("failed", error)` or
    `("stopped",)`.

    Args:
        connection: Brings tuples of a `Run`, its learning rate or None and
            its folder.
        stop: Event; once it is set, a run saves where it is and stops.
        deadline: Of `time.time()`; as if `stop` was set then. None is never.
        cpus: The CPUs of this process, a set; None takes all.
        scale: The `Scale`.
        data: Folder of the stream.
    """
    # A terminal's Ctrl-C reaches all; the one that hands out runs decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    # What TensorFlow says of many models in one process would bury the bars.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Keras takes seconds to import, and its backend the CPUs it finds.
    from training.corpus.stream import read_stream

    stream = read_stream(data)

    def should_stop():
        return stop.is_set() or (
            deadline is not None and time.time() > deadline
        )

    def report(updates):
        nonlocal told
        if time.monotonic() - told > _REPORT_SECONDS:
            connection.send(("updates", updates))
            told = time.monotonic()

    connection.send(("ready",))
    while True:
        told = time.monotonic()
        try:
            run, rate, folder = connection.recv()
        except EOFError:
            return
        try:
            made = _make(run, rate, folder, scale, stream, should_stop, report)
            connection.send(("finished" if made else "stopped",))
        except BrokenPipeError:
            return  # the one that hands out runs is gone
        except Exception as error:
            fail(folder, f"{type(error).__name__}: {error}", error)
            connection.send(("failed", str(error)))


def fail(
    folder: pathlib.Path, message: str, error: Exception | None = None
) -> None:
    """Records that a run failed."""
    lines = traceback.format_exception(error) if error else []
    write_json(
        folder / "failed.json",
        {"error": message, "traceback": "".join(lines), "finished": _now()},
    )


def _make(run, rate, folder, scale, stream, should_stop, report):
    """Makes a run and returns whether it is finished."""
    import keras

    from training.reproduce import contexts, language

    folder.mkdir(parents=True, exist_ok=True)
    split = "test" if run.rate is None else "tuning"
    if run.cell.contexts is not None:
        figures = contexts.fit(run.cell, scale, run.seed, should_stop, report)
    else:
        figures = language.train(
            run.cell,
            scale,
            stream,
            run.seed,
            rate,
            split,
            folder,
            should_stop,
            report,
        )
    if figures is None:
        return False
    if run.cell.contexts is None:
        least = language.frequency_nats(stream, split)
        if figures["nats"] > _LEARNED * least:
            raise ArithmeticError(
                f"it learned no more than the frequencies of tokens: "
                f"{figures['nats']:.4f} nats, these {least:.4f}"
            )
    write_json(
        folder / "record.json",
        {
            "cell": run.cell.name,
            "seed": run.seed,
            "rate": rate,
            "figures": figures,
            "finished": _now(),
            "versions": {
                "python": platform.python_version(),
                "keras": keras.__version__,
                keras.backend.backend(): _backend_version(),
            },
            "hardware": _hardware(),
        },
    )
    (folder / language.CHECKPOINT).unlink(missing_ok=True)
    return True


def _now():
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _backend_version():
    import importlib.metadata

    import keras

    return importlib.metadata.version(keras.backend.backend())


def _hardware():
    import keras

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
