"""Text to shards of token ids in the processes of this machine."""

import collections
import concurrent.futures
import os
import pathlib

from rich.progress import DownloadColumn, TransferSpeedColumn

from keras_fixedhead.progress import progress
from training.corpus.vocabulary import make_vocabulary
from training.prepare.configs import TextConfig
from training.prepare.documents import Tally
from training.prepare.sampling import Sample
from training.prepare.shards import divide, write_shards
from training.prepare.sources import Sources
from training.prepare.workers import THREADS, worker_pool

# Documents between two updates of the progress bar.
_BETWEEN_UPDATES = 1_000


def tokenize(
    config: TextConfig, sources: Sources, work: pathlib.Path
) -> collections.Counter:
    """Writes the vocabulary and the shards that the work folder lacks.

    This process reads the sources, once for a vocabulary to learn and once to
    tokenize, and hands units of documents to workers.

    Args:
        config: The arguments of the run.
        sources: Where the documents come from.
        work: The work folder, see `training.prepare.shards`.

    Returns:
        What was met while reading, by the names in
        `training.prepare.documents`.

    Raises:
        OSError: A source cannot be read, a file cannot be written, or a
            worker was killed.
        ValueError: A source or the vocabulary is wrong.
    """
    cpus = len(os.sched_getaffinity(0))
    workers = config.workers or max(cpus // THREADS, 1)
    tally = Tally()
    with worker_pool(workers) as pool:
        if not work.joinpath("data", "vocabulary.txt").exists():
            if config.vocabulary is None:
                sample = _draw(config, sources)
                write_sample(work, sample.documents())
            write_vocabulary(config, work, pool)
        with _progress("Tokenizing", sources) as advance:
            write_shards(
                divide(
                    sources.documents(tally),
                    int(config.shard_megabytes * 10**6),
                    tally,
                ),
                work,
                config.lowercase,
                pool,
                max_pending=workers + 1,
                advance=advance,
            )
    return tally.counts


def write_sample(work: pathlib.Path, documents: list[bytes]) -> None:
    """Writes what the vocabulary is learned from into the work folder."""
    _sample_path(work).write_bytes(b"\n".join(documents))


def write_vocabulary(
    config: TextConfig,
    work: pathlib.Path,
    pool: concurrent.futures.Executor,
) -> None:
    """Writes the vocabulary that is given, or learned from the sample.

    Args:
        config: The arguments of the run.
        work: The work folder.
        pool: Where TensorFlow may be imported.

    Raises:
        OSError, ValueError: See `make_vocabulary`.
    """
    pool.submit(
        make_vocabulary,
        work / "data" / "vocabulary.txt",
        config.vocabulary,
        _sample_path(work),
        config.vocabulary_size,
        config.lowercase,
    ).result()


def _sample_path(work):
    return work / "sample.txt"


def _draw(config, sources):
    """The sample to learn the vocabulary from."""
    sample = Sample(config.vocabulary_megabytes * 10**6, config.seed)
    tally = Tally()
    reported = 0
    with _progress("Drawing a sample", sources) as advance:
        for number, (split, document) in enumerate(sources.documents(tally)):
            if split == "train":
                sample.add(document)
            if number % _BETWEEN_UPDATES == 0:
                advance(tally.bytes_read - reported)
                reported = tally.bytes_read
        advance(sources.num_bytes - reported)
    return sample


def _progress(label, sources):
    return progress(
        label, sources.num_bytes, DownloadColumn(), TransferSpeedColumn()
    )
