"""Documents of token ids to pre-train and to evaluate on."""

import contextlib
import os

from rich.progress import DownloadColumn, TransferSpeedColumn

from keras_fixedhead.files import replaced
from keras_fixedhead.progress import progress
from training.corpus import vocabulary
from training.engine.configs import check_positive
from training.prepare.configs import TextConfig
from training.prepare.documents import BYTES, Counts
from training.prepare.folder import Output
from training.prepare.shards import (
    THREADS,
    divide,
    summarize,
    worker_pool,
    write_shards,
)
from training.prepare.sources import (
    Sources,
    check_outside,
    find_sources,
    sample,
    without,
)

# Documents between two updates of the progress bar.
_BETWEEN_UPDATES = 1_000


def prepare_text(config: TextConfig) -> dict:
    """Writes or continues a folder of shards, and returns its manifest."""
    heldout = config.heldout
    if heldout is None:
        heldout = 0.0 if config.heldout_source else 0.01
    if not 0 <= heldout < 1 or (heldout and config.heldout_source):
        raise ValueError(
            "`heldout` must be from 0 to 1, and 0 where there is "
            f"`heldout_source`. Received: {heldout}"
        )
    check_positive(
        vocabulary_megabytes=config.vocabulary_megabytes,
        shard_megabytes=config.shard_megabytes,
        workers=1 if config.workers is None else config.workers,
    )
    names = [*config.source, *config.heldout_source]
    if config.vocabulary is not None:
        names.append(str(config.vocabulary))
    check_outside(config.output, names)
    output = Output(config, names)
    if (made_before := output.made_before()) is not None:
        return made_before

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
    with output.work_folder([*sources.train, *sources.heldout]) as work:
        tokens = work / "data" / "vocabulary.txt"
        if not tokens.exists():
            _make_vocabulary(config, sources, tokens)
        if config.beam is None:
            met = _tokenize(config, sources, work)
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
        count = tokens.read_bytes().count(b"\n")
        manifest["counts"]["tokens in the vocabulary"] = count
        return output.finish(work, manifest)


def _make_vocabulary(config, sources, path):
    """Writes the given vocabulary, or learns one from a sample of the text."""
    if config.vocabulary is None:
        read = _read("Drawing a sample", sources, Counts())
        drawn = sample(
            (document for split, document in read if split == "train"),
            config.vocabulary_megabytes * 10**6,
            config.seed,
        )
        tokens = vocabulary.learn_vocabulary(
            b"\n".join(drawn).split(b"\n"),
            config.vocabulary_size,
            config.lowercase,
        )
    else:
        tokens = vocabulary.read_vocabulary(config.vocabulary)
    with replaced(path) as partial:
        vocabulary.write_vocabulary(partial, tokens)


def _tokenize(config, sources, work):
    """Writes missing shards, and returns the counts of what was read."""
    cpus = len(os.sched_getaffinity(0))
    workers = config.workers or max(cpus // THREADS, 1)
    counts = Counts()
    with (
        worker_pool(workers) as pool,
        contextlib.closing(_read("Tokenizing", sources, counts)) as documents,
    ):
        shards = divide(documents, int(config.shard_megabytes * 10**6))
        write_shards(shards, work, config.lowercase, pool, workers + 1)
    return counts


def _read(label, sources, counts):
    """Yields splits and documents, and shows how much is read."""
    columns = DownloadColumn(), TransferSpeedColumn()
    reported = 0
    with progress(label, sources.num_bytes, *columns) as advance:
        for number, element in enumerate(sources.documents(counts)):
            yield element
            if number % _BETWEEN_UPDATES == 0:
                advance(counts[BYTES] - reported)
                reported = counts[BYTES]
        advance(sources.num_bytes - reported)
