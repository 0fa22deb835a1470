"""A corpus in which every token is another one.

So each token tells where it stood, and an example what it was made of.
"""

import pathlib
import typing

import numpy as np

from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from training.corpus.tokenized import Document, Shard, write_shard


class Text(typing.NamedTuple):
    """All documents, one after the other. Tokens are numbered from 0."""

    shards: list[Shard]
    documents: list[tuple[int, int]]  # start and end
    document: np.ndarray  # of each token
    shard: np.ndarray  # of each token
    line_starts: set[int]


def write(folder: pathlib.Path, lengths: list[list[int]]) -> Text:
    """Writes documents, of so many tokens, of each shard."""
    rng = np.random.default_rng(5)
    shards, documents, line_starts = [], [], set()
    for name, mine in enumerate(lengths):
        contents = []
        for length in mine:
            start = documents[-1][1] if documents else 0
            documents.append((start, start + length))
            cuts = np.flatnonzero(rng.random(length) < 0.15)
            cuts = np.unique([0, *cuts])
            line_starts.update((start + cuts).tolist())
            contents.append(
                Document(
                    start + np.arange(length) + len(SPECIAL_TOKENS),
                    np.diff([*cuts, length]),
                )
            )
        entry = write_shard(folder, str(name), contents)
        path = folder / entry["name"]
        shards.append(Shard(path, np.array(mine), entry["sha256"]))
    return Text(
        shards,
        documents,
        np.repeat(range(len(documents)), [b - a for a, b in documents]),
        np.repeat(range(len(lengths)), [sum(x) for x in lengths]),
        line_starts,
    )
