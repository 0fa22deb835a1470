"""What the command lines of `export` share."""

import signal
import sys

import tyro

Positional = tyro.conf.Positional


def run(main, arguments_class, argv=None):
    """Parses the command line, runs `main`; returns the exit status.

    A `ValueError`, `OSError` or `ImportError`, which is how this project says
    that an argument, a file, a server or an installation is wrong, is printed
    as one line. An interrupt (Ctrl-C) ends the command without a traceback.

    Args:
        main: function of the parsed arguments that returns an exit status.
        arguments_class: a dataclass; its docstrings are the help.
        argv: list of words; those of the process by default.
    """
    prog = main.__globals__["__spec__"].name.removesuffix(".__main__")
    arguments = tyro.cli(
        arguments_class,
        prog=f"python -m {prog}",
        args=argv,
        config=(tyro.conf.OmitSubcommandPrefixes,),
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
