"""Data folders: their manifest, and the arrays of `training.prepare stream`.

A machine without TensorFlow can read both.
"""

import dataclasses
import hashlib
import json
import pathlib

import numpy as np


def read_manifest(folder: pathlib.Path, kind: str) -> tuple[dict, str]:
    """Returns the manifest of a folder of `kind`, and the file's SHA-256."""
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


def changed(path: pathlib.Path) -> ValueError:
    """Returns the error for a file that is not what its folder's was."""
    return ValueError(
        f"{path} is damaged, or was changed after it was written. Prepare the "
        "folder again"
    )


SPLITS = ("train", "tuning", "test")


@dataclasses.dataclass(frozen=True)
class Stream:
    """A folder that `python -m training.prepare stream` wrote.

    `sha256` is the manifest's. `splits` are memory-mapped integer arrays
    `[tokens]`: `[CLS]`, tokens and `[SEP]` of one document after the other.
    """

    vocabulary_size: int
    sha256: str
    counts: dict[str, int]
    splits: dict[str, np.ndarray]


def read_stream(folder: pathlib.Path) -> Stream:
    """Reads a folder of arrays; a `ValueError` names one that was changed."""
    manifest, sha256 = read_manifest(folder, "stream")
    counts = manifest["counts"]
    splits = {}
    for split in SPLITS:
        path = folder / f"{split}.npy"
        splits[split] = np.load(path, mmap_mode="r")
        if len(splits[split]) != counts[f"{split} tokens"]:
            raise changed(path)
    return Stream(counts["tokens in the vocabulary"], sha256, counts, splits)
