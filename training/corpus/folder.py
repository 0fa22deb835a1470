"""What every data folder has: a manifest."""

import hashlib
import json
import pathlib


def read_manifest(folder: pathlib.Path, kind: str) -> tuple[dict, str]:
    """Reads `manifest.json`.

    Args:
        folder: A data folder.
        kind: What it must hold: `text`, `pairs` or `stream`.

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
