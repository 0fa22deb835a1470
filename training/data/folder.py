"""What every data folder has: a manifest, and files that are whole."""

import contextlib
import hashlib
import json
import os
import pathlib
import secrets
from collections.abc import Iterator


def read_manifest(folder: pathlib.Path, kind: str) -> tuple[dict, str]:
    """Reads `manifest.json`.

    Args:
        folder: A data folder.
        kind: What it must hold, `text` or `pairs`.

    Returns:
        The manifest, and the SHA-256 of the file.

    Raises:
        OSError: There is no such file.
        ValueError: It is none that `python -m training.prepare` wrote, or that
            of a folder of another kind.
    """
    path = folder / "manifest.json"
    content = path.read_bytes()
    try:
        manifest = json.loads(content)
        found = manifest["kind"]
    except (ValueError, KeyError, TypeError):
        found = None
    if found != kind:
        raise ValueError(
            f"{path} must be one that `python -m training.prepare {kind}` "
            f"wrote. Received: {'something else' if found is None else found}"
        )
    return manifest, hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def replaced(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields the path of a file to write, which then becomes `path`.

    What `path` held is there until then, and stays if the block raises.
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
