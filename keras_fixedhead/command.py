"""Runs the commands of this package, and imports its modules lazily."""

import importlib
import signal
import sys
from collections.abc import Callable
from typing import Any


def entry_point(
    command: Callable[[Any], None], config_type: type, prog: str, **options: Any
) -> Callable[..., int]:
    """Returns `main` of a module; `options` are those of `tyro.cli`."""

    def main(args: list[str] | None = None) -> int:
        import tyro

        config: Any = tyro.cli(
            config_type,
            args=args,
            prog=f"python -m {prog}",
            use_underscores=True,
            **options,
        )
        return run(command, config, prog)

    return main


def run(command: Callable[[Any], None], config: Any, prog: str) -> int:
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


def public_names(
    package: str, **modules: str
) -> tuple[Callable[[str], Any], list[str]]:
    """Returns a package's `__getattr__` (see PEP 562) and its `__all__`.

    A command's `--help` then need not wait for Keras. `package` is its
    `__name__`; `modules` lists each module's public names, space-separated.
    """
    homes = {
        name: module
        for module, names in modules.items()
        for name in names.split()
    }

    def __getattr__(name):
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        module = importlib.import_module(f"{package}.{homes[name]}")
        return getattr(module, name)

    return __getattr__, sorted(homes)
