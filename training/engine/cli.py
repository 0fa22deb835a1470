"""What the verbs that train share: reading a run, and exit statuses."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable

import tyro

from training.engine.errors import Interrupted, RunFailed, WorkerLost

# Of sysexits.h: it may succeed when tried again.
EX_TEMPFAIL = 75
# That of argparse and tyro: the command line cannot be read.
_USAGE = 2


def parse(
    named: dict[str, Callable],
    prog: str,
    description: str,
    args: list[str] | None,
):
    """Reads a run from the command line: a named one, and what differs.

    Args:
        named: Functions that return the named runs, with docstrings. Their
            dataclasses may differ; a field `config` is the name.
        prog: What the user calls.
        description: What it does.
        args: The command line; `None` is that of the process.

    Returns:
        A run of the dataclass of the named one.
    """
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chosen.add_argument("--config", default=next(iter(named)))
    name = chosen.parse_known_args(args)[0].config
    if name not in named:
        say_error(
            prog,
            f"--config must be one of {', '.join(named)}. Received: {name}",
        )
        sys.exit(_USAGE)
    listed = "\n".join(
        f"  {name}: {function.__doc__}" for name, function in named.items()
    )
    default = named[name]()
    return tyro.cli(
        type(default),
        args=args,
        prog=f"python -m {prog}",
        description=f"{description}\n\nNamed configurations:\n{listed}",
        default=default,
        config=(tyro.conf.OmitArgPrefixes,),
        use_underscores=True,
    )


def run(verb: Callable, config, prog: str) -> int:
    """Runs a verb and returns the exit status.

    0 when it is done; 128 and the signal's number when one stopped it; 75
    (`EX_TEMPFAIL`) when another worker was lost; 1 for what a restart does
    not mend. 2, for a command line that cannot be read, comes from parsing.

    Args:
        verb: Called with `config`.
        config: The run.
        prog: What the user calls.
    """
    # What TensorFlow logs below an error would bury the progress bar.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        verb(config)
    except Interrupted as interrupted:
        say_error(prog, interrupted)
        return 128 + interrupted.signum
    except KeyboardInterrupt:
        say_error(prog, "interrupted")
        return 128 + signal.SIGINT
    except WorkerLost as lost:
        say_error(prog, lost)
        return EX_TEMPFAIL
    except (
        ValueError, OSError, ImportError, FloatingPointError, RunFailed
    ) as error:  # fmt: skip
        say_error(prog, error)
        return 1
    return 0


def say_error(prog: str, error: Exception | str):
    """Prints why a command ends, as `argparse` does."""
    print(f"{prog}: error: {error}", file=sys.stderr)


def say_usage(prog: str, usage: str, error: str) -> int:
    """Prints how a command is called, and returns the exit status."""
    print(f"usage: python -m {prog} {usage}", file=sys.stderr)
    say_error(prog, error)
    return _USAGE


def import_tensorflow():
    """Imports TensorFlow, and says so: it takes seconds.

    Verbs call this once they have read the command line, so that `--help` does
    not wait.
    """
    if "tensorflow" not in sys.modules:
        print("importing TensorFlow", file=sys.stderr, flush=True)
        importlib.import_module("tensorflow")
