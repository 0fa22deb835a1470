"""Text to shards of token ids in worker processes of this machine."""

import collections
import contextlib
import os
import pathlib
from collections.abc import Iterator

from rich.progress import DownloadColumn, TransferSpeedColumn

from keras_fixedhead.files import replaced
from keras_fixedhead.progress import progress
from training.corpus import vocabulary
from training.prepare.configs import TextConfig
from training.prepare.documents import Tally
from training.prepare.shards import divide, write_shards
from training.prepare.sources import Sample, Sources
from training.prepare.workers import THREADS, worker_pool

# Documents between two updates of the progress bar.
_BETWEEN_UPDATES = 1_000


def tokenize(
    config: TextConfig, sources: Sources, work: pathlib.Path
) -> collections.Counter:
    """Writes the vocabulary and the shards that the work folder lacks.

    This process reads the sources, once to learn a vocabulary and once to
    tokenize, and hands the documents of each shard to a worker. Returns what
    `Tally.counts` counted.
    """
    if not work.joinpath("data", "vocabulary.txt").exists():
        if config.vocabulary is None:
            sample = Sample(config.vocabulary_megabytes * 10**6, config.seed)
            for split, document in _read("Drawing a sample", sources, Tally()):
                if split == "train":
                    sample.add(document)
            sample_path(work).write_bytes(b"\n".join(sample.documents()))
        write_vocabulary(config, work)
    cpus = len(os.sched_getaffinity(0))
    workers = config.workers or max(cpus // THREADS, 1)
    tally = Tally()
    with (
        worker_pool(workers) as pool,
        contextlib.closing(_read("Tokenizing", sources, tally)) as documents,
    ):
        shards = divide(documents, int(config.shard_megabytes * 10**6))
        write_shards(shards, work, config.lowercase, pool, workers + 1)
    return tally.counts


def sample_path(work: pathlib.Path) -> pathlib.Path:
    """The text of the work folder to learn a vocabulary from."""
    return work / "sample.txt"


def write_vocabulary(config: TextConfig, work: pathlib.Path) -> None:
    """Writes the vocabulary that is given, or learned from the sample."""
    if config.vocabulary is None:
        tokens = vocabulary.learn_vocabulary(
            sample_path(work).read_bytes().split(b"\n"),
            config.vocabulary_size,
            config.lowercase,
        )
    else:
        tokens = vocabulary.read_vocabulary(config.vocabulary)
    with replaced(work / "data" / "vocabulary.txt") as partial:
        vocabulary.write_vocabulary(partial, tokens)


def _read(label, sources, tally) -> Iterator[tuple[str, bytes]]:
    """Yields the documents of the sources, and shows how much is read."""
    columns = DownloadColumn(), TransferSpeedColumn()
    reported = 0
    with progress(label, sources.num_bytes, *columns) as advance:
        for number, element in enumerate(sources.documents(tally)):
            yield element
            if number % _BETWEEN_UPDATES == 0:
                advance(tally.bytes_read - reported)
                reported = tally.bytes_read
        advance(sources.num_bytes - reported)
