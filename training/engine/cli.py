"""What commands share: flags, messages, errors, signals, locks, statuses."""

import argparse
import contextlib
import fcntl
import importlib
import os
import pathlib
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import tyro

from training.engine.configs import ExperimentConfig

# From sysexits.h: the same command may succeed when it is tried again.
EX_TEMPFAIL = 75
# As argparse and tyro: the command line is wrong.
USAGE = 2


class Interrupted(Exception):
    """A signal stopped the run, which saved a checkpoint after `step`."""

    def __init__(self, signum: int, step: int):
        self.exit_status = 128 + signum
        super().__init__(
            f"stopped by {signal.Signals(signum).name} after step {step}; "
            "the same command continues from there"
        )


class WorkerLost(Exception):
    """Another worker is gone, and this one cannot go on without it."""

    exit_status = EX_TEMPFAIL


class RunFailed(Exception):
    """TensorFlow failed: a shard is missing, the disk is full, ..."""


# What ends a command with a line instead of a traceback.
_FAILURES = (
    *(Interrupted, WorkerLost, RunFailed),
    *(ValueError, OSError, ImportError, FloatingPointError),
)


def command(
    verb: Callable, config_type: type, prog: str, doc: str
) -> Callable[..., int]:
    """Returns `main` of a module: it reads `config_type` and runs the verb."""

    def main(args: list[str] | None = None) -> int:
        config: Any = tyro.cli(
            config_type,
            args=args,
            prog=f"python -m {prog}",
            description=description(doc),
            use_underscores=True,
        )
        return run(verb, config, prog)

    return main


def description(doc: str) -> str:
    """Returns a module's docstring for `--help`, as tyro formats it best."""
    # tyro adds a blank line before an indented one.
    return re.sub("^ {4}", "", doc.strip(), flags=re.MULTILINE)


def run(verb: Callable[[Any], int | None], config: Any, prog: str) -> int:
    """Calls `verb(config)` and returns the exit status, 1 after an error."""
    # TensorFlow's warnings would break up the progress bar.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return verb(config) or 0
    except KeyboardInterrupt:
        say_error(prog, "interrupted")
        return 128 + signal.SIGINT
    except _FAILURES as error:
        say_error(prog, error)
        return getattr(error, "exit_status", 1)


def say_error(prog: str, error: Exception | str) -> None:
    """Prints why a command ends, as `argparse` does."""
    print(f"{prog}: error: {error}", file=sys.stderr)


def import_tensorflow() -> None:
    """Imports TensorFlow, which takes seconds, and prints that it does."""
    if "tensorflow" not in sys.modules:
        print("importing TensorFlow", file=sys.stderr, flush=True)
        importlib.import_module("tensorflow")


@contextlib.contextmanager
def handling(handlers: Mapping[signal.Signals, Callable]) -> Iterator[None]:
    """Handles signals, given by number, until the block is left."""
    previous = {
        signum: signal.signal(signum, handler)
        for signum, handler in handlers.items()
    }
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def exit_status(returncode: int) -> int:
    """Returns an exit status as shells count: 128 plus the signal, if any."""
    return returncode if returncode >= 0 else 128 - returncode


def training_command(
    prog: str, doc: str, *modules: ModuleType
) -> tuple[Callable, Callable, Callable[..., int]]:
    """Returns `parse`, `train` and `main` for the `NAMED_RUNS` of modules.

    `parse` returns the run that `--config` names, changed by the other flags;
    `train` trains or continues it, see `training.engine.loop.run_task`.
    """
    named_runs: dict[str, Callable[[], ExperimentConfig]] = {}
    for module in modules:
        named_runs |= module.NAMED_RUNS

    def parse(args: list[str] | None = None) -> ExperimentConfig:
        chosen = argparse.ArgumentParser(
            prog, add_help=False, allow_abbrev=False
        )
        first = next(iter(named_runs))
        chosen.add_argument("--config", default=first, choices=named_runs)
        name = chosen.parse_known_args(args)[0].config
        listed = ""
        for named, function in named_runs.items():
            lines = re.split(r"\s*\n\s*", (function.__doc__ or "").strip())
            listed += f"\n  {named}: " + "\n    ".join(lines)
        default = named_runs[name]()
        return tyro.cli(
            type(default),
            args=args,
            prog=f"python -m {prog}",
            description=f"{description(doc)}\n\nNamed configurations:{listed}",
            default=default,
            config=(tyro.conf.OmitArgPrefixes,),
            use_underscores=True,
        )

    def train(config: ExperimentConfig) -> dict[str, float]:
        import_tensorflow()
        from training.engine.loop import run_task

        return run_task(config, pkgutil.resolve_name(config.task))

    def main(args: list[str] | None = None) -> int:
        args = sys.argv[1:] if args is None else args

        def verb(config: ExperimentConfig) -> int:
            if config.seeds == 1:
                train(config)
                return 0
            from training.engine.records import run_seeds

            return run_seeds(prog, config, args)

        return run(verb, parse(args), prog)

    return parse, train, main


@contextlib.contextmanager
def held(folder: pathlib.Path, busy: str) -> Iterator[None]:
    """Locks a folder, or raises a `ValueError` with the message `busy`."""
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        yield
