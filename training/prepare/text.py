"""Documents of token ids to pre-train and to evaluate on."""

import collections
import contextlib
import os
import pathlib
from collections.abc import Generator

from rich.progress import DownloadColumn, TransferSpeedColumn

from keras_fixedhead.files import replaced
from keras_fixedhead.progress import progress
from training.corpus import vocabulary
from training.prepare.configs import TextConfig
from training.prepare.documents import Tally
from training.prepare.folder import Output
from training.prepare.shards import divide, summarize, write_shards
from training.prepare.sources import (
    Sample,
    Sources,
    check_outside,
    find_sources,
    without,
)
from training.prepare.workers import THREADS, worker_pool

# Documents between two updates of the progress bar.
_BETWEEN_UPDATES = 1_000


def prepare_text(config: TextConfig) -> dict:
    """Writes a folder of tokenized documents, and returns its manifest.

    A folder made with the same arguments is left as it is; an unfinished one
    is continued. Shards are those of `training.corpus.tokenized`.
    """
    heldout = config.heldout
    if heldout is None:
        heldout = 0.0 if config.heldout_source else 0.01
    if not 0 <= heldout < 1 or (heldout and config.heldout_source):
        raise ValueError(
            "`heldout` must be from 0 to 1, and 0 where there is "
            f"`heldout_source`. Received: {heldout}"
        )
    for name in ("vocabulary_megabytes", "shard_megabytes", "workers"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"`{name}` must be positive. Received: {value}")
    names = [*config.source, *config.heldout_source]
    if config.vocabulary is not None:
        names.append(str(config.vocabulary))
    check_outside(config.output, names)
    output = Output(config, "text", names)
    if output.made_before is not None:
        return output.made_before

    train_sources, heldout_sources = (
        find_sources(names, config.tfds_data_dir, config.lines_are_documents)
        for names in (config.source, config.heldout_source)
    )
    sources = Sources(
        train=without(train_sources, heldout_sources),
        heldout=heldout_sources,
        heldout_part=heldout,
        seed=config.seed,
    )
    with output.work_folder(sources.plan()) as work:
        if config.beam is None:
            met = tokenize(config, sources, work)
        else:
            from training.prepare import beam

            met = beam.tokenize(config, sources, work)
        manifest = summarize(work, met)
        shards = manifest["shards"]
        if not shards["train"] or (
            not shards["heldout"] and (heldout or heldout_sources)
        ):
            raise ValueError(
                "`source` must give documents to train on, and to hold out "
                f"if any are held out. Received: {manifest['counts']}, left "
                f"out: {manifest['left_out']}"
            )
        tokens = work.joinpath("data", "vocabulary.txt").read_bytes()
        manifest["counts"]["tokens in the vocabulary"] = tokens.count(b"\n")
        return output.finish(work / "data", manifest)


def tokenize(
    config: TextConfig, sources: Sources, work: pathlib.Path
) -> collections.Counter[str]:
    """Writes the vocabulary and the shards that the work folder lacks.

    This process reads the sources, once to learn a vocabulary and once to
    tokenize, and hands the documents of each shard to a worker process.
    Returns `Tally.counts`.
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
    """The text in the work folder to learn a vocabulary from."""
    return work / "sample.txt"


def write_vocabulary(config: TextConfig, work: pathlib.Path) -> None:
    """Writes the given vocabulary, or one learned from the sample."""
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


def _read(
    label: str, sources: Sources, tally: Tally
) -> Generator[tuple[str, bytes]]:
    """Yields splits and documents, and shows how much is read."""
    columns = DownloadColumn(), TransferSpeedColumn()
    reported = 0
    with progress(label, sources.num_bytes, *columns) as advance:
        for number, element in enumerate(sources.documents(tally)):
            yield element
            if number % _BETWEEN_UPDATES == 0:
                advance(tally.bytes_read - reported)
                reported = tally.bytes_read
        advance(sources.num_bytes - reported)
