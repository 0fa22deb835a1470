"""How much does one replica answer, and with how much memory?

    python -m benchmarks.sizing --workdir runs/sizing

Exports encoders of two shapes with random weights, serves each on one core and
on two, and asks over gRPC for 1, 8 and 32 texts at a time: first one caller,
for the latency, then several at once, for the throughput. Prints a table for
docs/deploy.md. The callers run on the cores that the server leaves,
or on the same where it leaves none. Needs Linux, and a machine with no other
work.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import re
import shutil
import time
from collections.abc import Collection

import numpy as np

from benchmarks import common, serving
from export import client, local_server, stand_in

_SHAPES = {
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
    connection: client.Client, batches: list[np.ndarray], seconds: float
) -> list[float]:
    """Asks for one batch after the other; returns seconds of each request."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    for batch in itertools.cycle(batches):
        start = time.perf_counter()
        if start >= end:
            return taken
        connection.predict({"text": batch})
        taken.append(time.perf_counter() - start)
    return taken


def measure(url: str, name: str, rows: int, seconds: float) -> list[str]:
    """Texts a second, and p50, p99 and busy p99 in milliseconds."""
    random = np.random.default_rng(0)
    batches = [serving.texts(rows, _TOKENS, random, _WORDS) for _ in range(16)]
    with client.connect(url, name) as connection:
        ask = functools.partial(latencies, connection, batches, seconds)
        connection.predict({"text": batches[0]})  # reads the signatures
        alone = ask()
        with concurrent.futures.ThreadPoolExecutor(_CALLERS) as pool:
            start = time.perf_counter()
            calls = [pool.submit(ask) for _ in range(_CALLERS)]
            busy = [taken for call in calls for taken in call.result()]
            elapsed = time.perf_counter() - start
    p50, p99 = np.percentile(alone, [50, 99]) * 1e3
    busy_p99 = np.percentile(busy, 99) * 1e3
    times = [f"{value:,.1f}" for value in (p50, p99, busy_p99)]
    return [f"{len(busy) * rows / elapsed:,.0f}", *times]


def main() -> None:
    config = common.parse(Config)
    folders = {
        name: serving.export(name, config.workdir.resolve(), shape)
        for name, shape in _SHAPES.items()
    }
    available = sorted(os.sched_getaffinity(0))
    environment = common.environment("tensorflow")
    lines = []
    cases = list(itertools.product(folders.items(), _CORES))
    for (name, folder), count in common.progress(cases, "Serving"):
        # TensorFlow starts as many threads as it may use cores.
        move_this_process(available[:count])
        with local_server.running(name, folder) as server:
            move_this_process(available[count:] or available)
            for rows in _ROWS:
                line = measure(server.grpc_url, name, rows, config.seconds)
                status = pathlib.Path(f"/proc/{server.process.pid}/status")
                peak = re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0]
                memory = f"{int(peak) * 1024 / 1e6:,.0f}"
                lines.append([name, count, rows, *line, memory])

    binary = stand_in.BINARY if shutil.which(stand_in.BINARY) else "stand-in"
    print(
        f"{environment}, {binary}, {_TOKENS} tokens, {_CALLERS} callers when "
        "busy\n"
    )
    titles = ["model", "cores", "texts a request", "texts/s, busy", "p50, ms"]
    titles += ["p99, ms", "p99 busy, ms", "memory, MB"]
    common.print_table(titles, lines)


if __name__ == "__main__":
    main()
