"""What the benchmarks share: flags, runs that take turns, and tables."""

import importlib.metadata
import platform
import time
import typing
from collections.abc import Callable

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track

_Config = typing.TypeVar("_Config")


def parse(
    config_class: type[_Config], name: str, description: str | None
) -> _Config:
    """Reads the flags of `python -m benchmarks.NAME`."""
    return tyro.cli(
        config_class,
        prog=f"python -m benchmarks.{name}",
        description=description,
        use_underscores=True,
    )


def milliseconds(
    calls: dict[str, Callable[[], object]], repeats: int
) -> dict[str, np.ndarray]:
    """Milliseconds `[repeats]` of each call.

    The calls take turns, so that other work on the machine slows all of them.
    """
    for call in [*calls.values(), *calls.values()]:  # to compile and warm up
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    console = Console(stderr=True)  # standard output is a table
    for _ in track(range(repeats), "Measuring", console=console):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: np.array(row) for name, row in times.items()}


def print_environment(*packages: str) -> None:
    """Prints the processor and the versions of packages."""
    versions = [
        f"{name} {importlib.metadata.version(name)}" for name in packages
    ]
    print(", ".join([processor(), *versions]))


def processor() -> str:
    """Returns the processor's name or kind."""
    return platform.processor() or platform.machine()


def print_header(*titles: str) -> None:
    """Begins a Markdown table."""
    print_row(*titles)
    print("|---" * len(titles) + "|")


def print_row(*cells: object) -> None:
    """Prints a row of a Markdown table, at once."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
