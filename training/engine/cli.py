"""What commands share: flags, messages, errors, signals, locks, statuses."""

import argparse
import contextlib
import fcntl
import importlib
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import tyro


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

    exit_status = os.EX_TEMPFAIL  # the same command may succeed later


class RunFailed(Exception):
    """TensorFlow failed: a shard is missing, the disk is full, ..."""


# What ends a command with a line instead of a traceback.
_FAILURES = (
    *(Interrupted, WorkerLost, RunFailed),
    *(ValueError, OSError, ImportError, FloatingPointError),
)


def command(
    verb: Callable, config_type: Any, prog: str, doc: str
) -> Callable[..., int]:
    """Returns `main` of a module: it reads `config_type` and runs the verb."""

    def main(args: list[str] | None = None) -> int:
        return run(verb, read_flags(config_type, args, prog, doc), prog)

    return main


def read_flags(
    kind: Any, args: list[str] | None, prog: str, doc: str, **options: Any
) -> Any:
    """Reads a `kind` from the flags; `options` are those of `tyro.cli`."""
    return tyro.cli(
        kind,
        args=args,
        prog=f"python -m {prog}",
        # tyro adds a blank line before an indented one.
        description=re.sub("^ {4}", "", doc.strip(), flags=re.MULTILINE),
        use_underscores=True,
        **options,
    )


def read_choice(
    flag: str, choices: Collection[str], args: list[str] | None, prog: str
) -> Any:
    """Reads the one flag, if given, that decides which others there are."""
    parser = argparse.ArgumentParser(prog, add_help=False, allow_abbrev=False)
    parser.add_argument(flag, dest="chosen", choices=choices)
    return parser.parse_known_args(args)[0].chosen


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


@contextlib.contextmanager
def held(folder: pathlib.Path, busy: str) -> Iterator[None]:
    """Locks a folder, or raises a `ValueError` with the message `busy`."""
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        yield
