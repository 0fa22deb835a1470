"""Parses and runs the command lines of `export`."""

import signal
import sys
from collections.abc import Callable
from typing import Any

import tyro
from tyro.conf import Positional as Positional


def run(
    main: Callable[..., int],
    arguments_class: type,
    argv: list[str] | None = None,
) -> int:
    """Parses the command line and runs `main`; returns its exit status.

    `arguments_class` is a dataclass whose docstrings are the help. Errors of
    arguments, files, servers and installations are printed as one line, an
    interrupt (Ctrl-C) likewise.
    """
    prog = main.__globals__["__spec__"].name.removesuffix(".__main__")
    arguments: Any = tyro.cli(
        arguments_class,
        prog=f"python -m {prog}",
        args=argv,
        use_underscores=True,
    )
    try:
        return main(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: error: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
