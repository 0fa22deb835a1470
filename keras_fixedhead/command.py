"""How the commands of this package end."""

import signal
import sys


def run(command, config, prog):
    """Runs a command and returns its exit status.

    0, or 1 after a `ValueError`, an `OSError` or an `ImportError`, which is
    printed as a line; 130 after an interrupt (Ctrl-C).

    Args:
        command: function of `config`.
        config: what is parsed from the command line.
        prog: str, the name of the module that is run.
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
