"""Runs the commands of this package."""

import signal
import sys
import typing
from collections.abc import Callable


def run(
    command: Callable[[typing.Any], None], config: typing.Any, prog: str
) -> int:
    """Calls `command(config)` and returns an exit status.

    0, or 1 after a `ValueError`, an `OSError` or an `ImportError`, which is
    printed as a line that names `prog`; 130 after an interrupt (Ctrl-C).
    """
    try:
        command(config)
    except (ImportError, OSError, ValueError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: error: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0
