"""Token ids in plain arrays, which a machine without TensorFlow can read."""

import dataclasses
import pathlib

import numpy as np

from training.corpus.folder import read_manifest

SPLITS = ("train", "tuning", "test")


@dataclasses.dataclass(frozen=True)
class Stream:
    """A folder that `python -m training.prepare stream` wrote.

    `sha256` is the manifest's, which holds the hash of each array. `splits`
    are memory-mapped integer arrays `[tokens]`: `[CLS]`, tokens and `[SEP]` of
    one document after the other.
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
            raise ValueError(
                f"{path} is damaged, or was changed after it was written. "
                "Prepare the folder again"
            )
    return Stream(counts["tokens in the vocabulary"], sha256, counts, splits)
