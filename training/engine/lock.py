"""Folders that one process at a time works in."""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def held(folder: pathlib.Path, busy: str) -> Iterator[None]:
    """Holds a folder; the lock goes with the process, however it ends.

    Args:
        folder: Gets a file `lock`.
        busy: What to say where another process holds it.

    Raises:
        ValueError: Another process holds it.
    """
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        yield
