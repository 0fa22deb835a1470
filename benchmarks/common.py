"""What the benchmarks share: flags, calls that take turns, and tables."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track

from keras_fixedhead.hardware import processor

ROOT = pathlib.Path(__file__).parents[1]
_Config = typing.TypeVar("_Config")


def parse(config_class: type[_Config]) -> _Config:
    main = sys.modules["__main__"]
    return tyro.cli(
        config_class,
        prog=f"python -m benchmarks.{pathlib.Path(sys.argv[0]).stem}",
        description=main.__doc__,
        use_underscores=True,
    )


def take_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, np.ndarray]:
    """Milliseconds `[repeats]` of each call.

    The calls take turns, so that other work on the machine slows all of them.
    """
    for call in [*calls.values(), *calls.values()]:  # to compile and warm up
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in progress(range(repeats), "Measuring"):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: np.array(row) for name, row in times.items()}


def compare(
    calls: Mapping[str, Callable[[], object]], repeats: int
) -> list[list[str]]:
    """A row for each call: its name, the median of its milliseconds, and that
    of the ratios to the first call, turn by turn."""
    times = take_turns(calls, repeats)
    first = next(iter(times.values()))
    return [
        [name, f"{np.median(row):,.1f}", f"{np.median(row / first):.2f}"]
        for name, row in times.items()
    ]


def start_worker(
    python: pathlib.Path | None,
    function: str,
    options: dict[str, typing.Any],
    threads: int | None = None,
) -> subprocess.Popen:
    """Starts a system of `embedding_worker`, by default with this Python and
    a thread a core."""
    count = str(threads or len(os.sched_getaffinity(0)))
    return subprocess.Popen(
        [
            python or sys.executable,
            ROOT / "benchmarks" / "embedding_worker.py",
            *(function, json.dumps(options, default=os.fspath)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_NUM_INTRAOP_THREADS": count,
            "OMP_NUM_THREADS": count,
            "TOKENIZERS_PARALLELISM": "true",
        },
    )


def embed(worker: typing.Any, texts: list[str]) -> list[float]:
    """Seconds, and processor seconds since the last answer."""
    print(json.dumps(texts), file=worker.stdin, flush=True)
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a system ended: {worker.args!r}")
    return json.loads(line)


def embeddings(
    worker: subprocess.Popen, workdir: pathlib.Path, texts: list[str]
) -> np.ndarray:
    """Rows `[N, D]`, of unit length, which not every model's are."""
    embed(worker, texts)
    rows = np.load(workdir / "embeddings.npy")
    return rows / np.maximum(np.linalg.norm(rows, axis=1), 1e-9)[:, None]


def export(
    preset: pathlib.Path, versions: pathlib.Path, dtype: str = "float32"
) -> pathlib.Path:
    """Exports a preset, unless the folder has version 1; returns its path."""
    version = versions / "1"
    if not version.exists():
        command = (
            *(sys.executable, "-m", "export.saved_model", "--dtype", dtype),
            *("--model", preset, "--output", versions, "--version", "1"),
        )
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return version


def progress(steps: Iterable, title: str) -> typing.Any:
    """Shows a progress bar on standard error; standard output is a table."""
    return track(steps, title, console=Console(stderr=True), transient=True)


def environment(*packages: str) -> str:
    """The date, the processor, and versions."""
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in packages
    ]
    python = f"Python {sys.version.split()[0]}"
    today = str(datetime.date.today())
    return ", ".join([today, processor(), python, *versions])


def print_table(titles: Iterable[str], rows: Iterable[Iterable]) -> None:
    titles = list(titles)
    for row in (titles, ["---"] * len(titles), *rows):
        print(f"| {' | '.join(map(str, row))} |", flush=True)
