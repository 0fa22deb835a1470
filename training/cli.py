"""What the verbs that train share: reading a run, and exit statuses."""

import argparse
import os
import sys
from collections.abc import Callable

import tyro

# Of sysexits.h: it may succeed when tried again.
EX_TEMPFAIL = 75


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
        sys.exit(
            f"{prog}: --config must be one of {', '.join(named)}. "
            f"Received: {name}"
        )
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
    not mend.

    Args:
        verb: Called with `config`.
        config: The run.
        prog: What the user calls.
    """
    # What TensorFlow logs below an error would bury the progress bar.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from training.interruption import Interrupted, RunFailed, WorkerLost

    def say(error):
        print(f"{prog}: {error}", file=sys.stderr)

    try:
        verb(config)
    except Interrupted as interrupted:
        say(interrupted)
        return 128 + interrupted.signum
    except WorkerLost as lost:
        say(lost)
        return EX_TEMPFAIL
    except (ValueError, OSError, FloatingPointError, RunFailed) as error:
        say(error)
        return 1
    return 0
