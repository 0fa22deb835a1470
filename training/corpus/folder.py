"""The manifest that every data folder has."""

import hashlib
import json
import pathlib


def read_manifest(folder: pathlib.Path, kind: str) -> tuple[dict, str]:
    """Returns the manifest of a `text`, `pairs` or `stream` folder.

    The second value is the SHA-256 of the file.
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
