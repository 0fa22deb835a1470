"""Waits for the other workers, before TensorFlow does.

TensorFlow waits silently, and only SIGKILL ends its wait.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Collection

_POLL_INTERVAL = 0.2  # seconds
_REMINDER_INTERVAL = 60.0  # seconds


def wait_for_workers(addresses: Collection[str], own: str) -> None:
    """Returns once each worker has listened at its address, `HOST:PORT`.

    Meanwhile listens at this worker's, `own`. Prints to stderr which workers
    are missing.
    """
    missing = {address for address in addresses if address != own}
    with _listener(own):
        said = time.monotonic()
        # Workers usually start together, within the first reminder.
        reminder = 10 * _POLL_INTERVAL
        while missing := {a for a in missing if not _is_there(a)}:
            if time.monotonic() - said > reminder:
                print(
                    f"waiting for worker {', '.join(sorted(missing))}",
                    file=sys.stderr,
                    flush=True,
                )
                said, reminder = time.monotonic(), _REMINDER_INTERVAL
            time.sleep(_POLL_INTERVAL)


@contextlib.contextmanager
def _listener(address):
    port = _split(address)[1]
    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        listener = socket.create_server(
            ("", port), family=family, dualstack_ipv6=both
        )
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot listen at the port of this worker ({error.strerror})",
            address,
        ) from None
    with listener:
        yield


def _is_there(address):
    try:
        socket.create_connection(_split(address), timeout=1).close()
    except OSError:  # the worker, or its name, may appear later
        return False
    return True


def _split(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
