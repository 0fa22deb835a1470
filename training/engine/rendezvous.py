"""Workers find each other before TensorFlow waits for them.

TensorFlow's own wait says nothing, and no signal but SIGKILL ends it.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Collection

_POLL_INTERVAL = 0.2  # seconds
_REMINDER_INTERVAL = 60.0  # seconds


def wait_for_workers(addresses: Collection[str], own: str):
    """Returns once there is, or was, a listener at each address.

    Until then there is one at this worker's. Says on stderr whom it waits for.

    Args:
        addresses: Addresses of all workers, `HOST:PORT`.
        own: This worker's address.

    Raises:
        OSError: Another process listens at this worker's port.
    """
    missing = {address for address in addresses if address != own}
    with _listener(own):
        said = time.monotonic()
        # Most of the time they all start together.
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
        if socket.has_dualstack_ipv6():
            listener = socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        else:
            listener = socket.create_server(("", port))
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
    except OSError:  # it, or its name, may yet come
        return False
    return True


def _split(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
