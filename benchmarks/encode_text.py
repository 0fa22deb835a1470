"""How long does `encode_text` take, beside sentence-transformers?

    python -m benchmarks.encode_text --preset runs/minilm \
        --source all-MiniLM-L6-v2 --peers runs/peers/bin/python \
        --collection cranfield

One encoder's weights, each system in a process of its own on the same
processors: queries one at a time, and documents in four lists. The systems run
in turn. Prints milliseconds or texts a second, and ratios pair by pair.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys

import numpy as np
import tyro

from benchmarks.embedding import Worker
from keras_fixedhead.beir import read_collection


@dataclasses.dataclass(frozen=True)
class Config:
    """The encoder, the texts and the peer."""

    preset: pathlib.Path
    """Preset folder of a text embedder."""
    source: pathlib.Path
    """The Hugging Face folder that it was converted from."""
    peers: pathlib.Path
    """A Python with sentence-transformers."""
    collection: pathlib.Path
    """BEIR folder."""
    queries: int = 60
    documents: int = 1000
    length: int = 256
    """Tokens of a text, the rest is cut."""


def seconds(workers, calls):
    """Seconds of each call, arrays by system; the systems take turns."""
    for worker in workers.values():
        worker.embed(calls[0])
    rows = [
        [worker.embed(texts)[0] for worker in workers.values()]
        for texts in calls
    ]
    return dict(zip(workers, np.array(rows).T))


def main():
    config = tyro.cli(
        Config,
        prog="python -m benchmarks.encode_text",
        description=__doc__,
        use_underscores=True,
    )
    threads = len(os.sched_getaffinity(0))
    collection = read_collection(config.collection)
    documents = collection.documents[: config.documents]
    size = -(-len(documents) // 4)
    ours = {"folder": str(config.preset.resolve())}
    theirs = {
        "folder": str(config.source.resolve()),
        "length": config.length,
        "batch_size": 32,
        "threads": threads,
    }
    with contextlib.ExitStack() as stack:
        workers = {
            "ours": Worker(sys.executable, "encode_text", ours, threads),
            "sentence-transformers": Worker(
                config.peers, "sentence_transformers", theirs, threads
            ),
        }
        for worker in workers.values():
            stack.enter_context(worker)
        alone = seconds(
            workers, [[query] for query in collection.queries[: config.queries]]
        )
        lists = seconds(
            workers,
            [
                documents[start : start + size]
                for start in range(0, len(documents), size)
            ],
        )
    print(
        f"{threads} processors\n\n| | ms a query | documents/s |\n|---|---|---|"
    )
    for name in workers:
        print(
            f"| {name} | {1e3 * np.median(alone[name]):.1f} | "
            f"{len(documents) / lists[name].sum():.1f} |"
        )
    peer = "sentence-transformers"
    print(
        f"\nTime of a query, ours / {peer}: "
        f"{np.median(alone['ours'] / alone[peer]):.2f}. Speed on documents: "
        f"{lists[peer].sum() / lists['ours'].sum():.2f}"
    )


if __name__ == "__main__":
    main()
