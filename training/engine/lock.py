"""Folders that one process at a time works in."""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def held(folder: pathlib.Path, busy: str) -> Iterator[None]:
    """Locks a folder by a file `lock`, until the block or the process ends.

    Raises a `ValueError` with the message `busy` if another process holds it.
    """
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        yield
