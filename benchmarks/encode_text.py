"""How long does `encode_text` take, beside sentence-transformers?

    python -m benchmarks.encode_text --preset runs/minilm \
        --source all-MiniLM-L6-v2 --peers runs/peers/bin/python \
        --collection cranfield

Both systems have the same encoder's weights and a process each on the same
processors. They take turns with queries one at a time, and with documents in
four lists. Prints milliseconds or texts a second, and ratios pair by pair.
"""

import contextlib
import dataclasses
import os
import sys

import numpy as np

from benchmarks import common
from benchmarks.embedding import Systems, Worker
from keras_fixedhead.beir import read_collection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Systems):
    """The encoder, the texts and the peer, a Python with
    sentence-transformers."""

    queries: int = 60
    documents: int = 1000
    length: int = 256
    """Tokens of a text; the rest is cut off."""


def time_calls(
    workers: dict[str, Worker], calls: list[list[str]]
) -> dict[str, np.ndarray]:
    """Seconds of each call, by system; the systems take turns."""
    for worker in workers.values():
        worker.embed(calls[0])
    rows = [
        [worker.embed(texts)[0] for worker in workers.values()]
        for texts in calls
    ]
    return dict(zip(workers, np.array(rows).T))


def main() -> None:
    config = common.parse(Config, "encode_text", __doc__)
    threads = len(os.sched_getaffinity(0))
    collection = read_collection(config.collection)
    queries = [[query] for query in collection.queries[: config.queries]]
    documents = collection.documents[: config.documents]
    size = -(-len(documents) // 4)
    lists = [
        documents[start : start + size]
        for start in range(0, len(documents), size)
    ]
    peer = "sentence-transformers"
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
            peer: Worker(
                config.peers, "sentence_transformers", theirs, threads
            ),
        }
        for worker in workers.values():
            stack.enter_context(worker)
        alone = time_calls(workers, queries)
        together = time_calls(workers, lists)
    print(f"{threads} processors\n")
    common.print_header("", "ms a query", "documents/s")
    for name in workers:
        common.print_row(
            name,
            f"{1e3 * np.median(alone[name]):.1f}",
            f"{len(documents) / together[name].sum():.1f}",
        )
    print(
        f"\nTime of a query, ours / {peer}: "
        f"{np.median(alone['ours'] / alone[peer]):.2f}. Speed on documents: "
        f"{together[peer].sum() / together['ours'].sum():.2f}"
    )


if __name__ == "__main__":
    main()
