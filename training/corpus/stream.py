"""Token ids in plain arrays, on the disk.

What needs no TensorFlow: `python -m training.prepare stream` wrote the arrays
where it is installed, and a machine that has another backend alone reads them.

Shape letters: N tokens of a split.
"""

import dataclasses
import pathlib

import numpy as np

from training.corpus.folder import read_manifest

SPLITS = ("train", "tuning", "test")


@dataclasses.dataclass(frozen=True)
class Stream:
    """What `python -m training.prepare stream` wrote.

    Attributes:
        vocabulary_size: The number of token ids.
        sha256: What the manifest hashes to. It holds the hash of each array.
        counts: What it is made of, for people.
        splits: `{split: integer array [N]}`, `[CLS]`, the tokens and `[SEP]`
            of one document after the other. They stay on the disk.
    """

    vocabulary_size: int
    sha256: str
    counts: dict[str, int]
    splits: dict[str, np.ndarray]


def read_stream(folder: pathlib.Path) -> Stream:
    """Reads a folder of `python -m training.prepare stream`.

    Raises:
        OSError: A file is missing.
        ValueError: The folder is none, or an array is not the one that was
            written.
    """
    manifest, sha256 = read_manifest(folder, "stream")
    splits = {}
    for split in SPLITS:
        path = folder / f"{split}.npy"
        splits[split] = np.load(path, mmap_mode="r")
        if len(splits[split]) != manifest["counts"][f"{split} tokens"]:
            raise ValueError(
                f"{path} is damaged, or was changed after it was written. "
                "Prepare the folder anew"
            )
    return Stream(
        manifest["counts"]["tokens in the vocabulary"],
        sha256,
        manifest["counts"],
        splits,
    )
