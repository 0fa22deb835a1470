"""Files that are whole or not there."""

import contextlib
import os
import secrets


@contextlib.contextmanager
def replaced(path):
    """Yields the path of a file to write, which then becomes `path`.

    What `path` held is there until then, and stays if the block raises.

    Args:
        path: `pathlib.Path`.

    Raises:
        OSError: if it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        # On the disk before it has its name, should the machine stop.
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
