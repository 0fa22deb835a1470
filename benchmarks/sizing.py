"""How much does one replica answer, and with how much memory?

    python -m benchmarks.sizing --workdir runs/sizing

Exports encoders of two shapes with random weights, serves each on one core and
on two, and asks over gRPC for 1, 8 and 32 texts at a time: first one caller,
for the latency, then several at once, for the throughput. Prints a table for
export/deploy/README.md. The callers run on the cores that the server leaves,
or on the same where it leaves none. Needs Linux, and a machine with no other
work.
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import importlib.metadata
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import time
import typing
from collections.abc import Collection, Iterator

import numpy as np
import rich.progress

from benchmarks import common, serving
from export import client, local_server, stand_in

_SHAPES: dict[str, dict[str, typing.Any]] = {
    # demo_retrieval of training/retrieval/configs.py, and its vocabulary.
    "demo": {
        "vocabulary_size": 15_672,
        "num_layers": 1,
        "num_heads": 4,
        "head_size": 96,
        "hidden_dim": 256,
        "intermediate_dim": 512,
        "max_sequence_length": 96,
    },
    # all-MiniLM-L6-v2.
    "MiniLM": {
        "vocabulary_size": 30_522,
        "num_layers": 6,
        "num_heads": 12,
        "head_size": 32,
        "hidden_dim": 384,
        "intermediate_dim": 1536,
        "max_sequence_length": 512,
    },
}
_CORES = (1, 2)
_ROWS = (1, 8, 32)
_TOKENS = 64
_WORDS = 15_000  # that both vocabularies have
_CALLERS = 4


@dataclasses.dataclass(frozen=True)
class Config:
    """Where to export, and how long to ask."""

    workdir: pathlib.Path
    """Folder for the exports."""
    seconds: float = 8
    """Of one caller, and again of several, for each line."""


def move_this_process(cores: Collection[int]) -> None:
    """Moves every thread there is; children and new threads follow."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread), cores)


def latencies(
    connection: client.Client, batches: Iterator[np.ndarray], seconds: float
) -> list[float]:
    """Asks for one batch after the other; returns seconds of each request."""
    taken = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        connection.predict({"text": next(batches)})
        taken.append(time.perf_counter() - start)
    return taken


def measure(
    url: str, name: str, rows: int, seconds: float
) -> tuple[float, float, float, float]:
    """Returns texts a second, and p50, p99 and busy p99 in milliseconds."""
    random = np.random.default_rng(0)
    batches = [serving.texts(rows, _TOKENS, random, _WORDS) for _ in range(16)]
    with client.connect(url, name) as connection:
        for batch in batches[:2]:  # the client reads the signatures
            connection.predict({"text": batch})
        alone = latencies(connection, itertools.cycle(batches), seconds)
        with concurrent.futures.ThreadPoolExecutor(_CALLERS) as pool:
            start = time.perf_counter()
            calls = [
                pool.submit(
                    latencies, connection, itertools.cycle(batches), seconds
                )
                for _ in range(_CALLERS)
            ]
            busy = [taken for call in calls for taken in call.result()]
            elapsed = time.perf_counter() - start
    p50, p99 = np.percentile(alone, [50, 99]) * 1e3
    return len(busy) * rows / elapsed, p50, p99, np.percentile(busy, 99) * 1e3


def peak_memory(process: subprocess.Popen) -> float:
    """Returns the most memory that a process has had, in MB."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    kilobytes = re.findall(r"VmHWM:\s*(\d+) kB", status)[0]
    return int(kilobytes) * 1024 / 1e6


def main() -> None:
    config = common.parse(Config, "sizing", __doc__)
    folders = {
        name: serving.export(name, config.workdir.resolve(), shape)
        for name, shape in _SHAPES.items()
    }
    available = sorted(os.sched_getaffinity(0))
    lines = []
    with rich.progress.Progress() as progress:
        total = len(_SHAPES) * len(_CORES) * len(_ROWS)
        task = progress.add_task("sizing", total=total)
        for (name, folder), count in itertools.product(folders.items(), _CORES):
            # TensorFlow starts as many threads as it may use cores.
            move_this_process(available[:count])
            with local_server.running(name, folder) as server:
                move_this_process(available[count:] or available)
                for rows in _ROWS:
                    speed, *times = measure(
                        server.grpc_url, name, rows, config.seconds
                    )
                    shown = [f"{value:,.1f}" for value in times]
                    memory = f"{peak_memory(server.process):,.0f}"
                    lines.append(
                        [name, count, rows, f"{speed:,.0f}", *shown, memory]
                    )
                    progress.advance(task)

    binary = stand_in.BINARY if shutil.which(stand_in.BINARY) else "stand-in"
    cpus = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = re.findall(r"model name\s*: (.*)", cpus)[0]
    print(
        f"{datetime.date.today()}, {len(available)} cores of {cpu}, "
        f"TensorFlow {importlib.metadata.version('tensorflow')}, {binary}, "
        f"{_TOKENS} tokens, {_CALLERS} callers when busy\n"
    )
    common.print_header(
        *("model", "cores", "texts a request", "texts/s, busy", "p50, ms"),
        *("p99, ms", "p99 busy, ms", "memory, MB"),
    )
    for line in lines:
        common.print_row(*line)


if __name__ == "__main__":
    main()
