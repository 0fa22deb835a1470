"""Files that are whole or not there."""

import contextlib
import json
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


def write_json(path, values):
    """Writes a JSON file, whole or not at all.

    Args:
        path: `pathlib.Path`.
        values: what `json.dumps` takes; finite numbers alone.

    Raises:
        OSError: if it cannot be written.
        ValueError: if a number is not finite.
    """
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")
