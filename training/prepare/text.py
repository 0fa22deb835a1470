"""Documents of token ids to pre-train and to evaluate on, in shards.

Sources and arguments alone decide what a shard holds, so a run that is started
again makes the missing shards.
"""

import contextlib
import json
import os
import pathlib

from rich.progress import DownloadColumn, TransferSpeedColumn

from keras_fixedhead.files import replaced
from keras_fixedhead.progress import progress
from training.corpus import vocabulary
from training.engine.configs import check_positive
from training.prepare import documents as counted
from training.prepare.configs import TextConfig
from training.prepare.documents import Counts
from training.prepare.folder import Output
from training.prepare.shards import (
    SPLITS,
    THREADS,
    divide,
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

# What the manifest has of the counts.
_COUNTS = (
    "training documents",
    "held-out documents",
    counted.LINES,
    "training words",
    "held-out words",
    "training tokens",
    "held-out tokens",
    counted.UNKNOWN,
    counted.BAD_UTF8,
    counted.LONG_LINES,
    counted.LONG_DOCUMENTS,
)
_LEFT_OUT = (
    counted.EMPTY, counted.LONG_JSON, counted.SHORT, counted.EMPTY_LINES
)  # fmt: skip

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
            met = _write_shards(config, sources, work)
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


def _write_shards(config, sources, work):
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
                advance(counts[counted.BYTES] - reported)
                reported = counts[counted.BYTES]
        advance(sources.num_bytes - reported)


def summarize(work: pathlib.Path, met: Counts) -> dict:
    """Adds up the parts: `counts`, `left_out` and `shards` of the manifest.

    `met` counts what was read. Removes shards without a document.
    """
    counts = Counts(met)
    shards: dict[str, list[dict]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for path in sorted(work.joinpath("parts").glob(f"{split}-*.json")):
            part = json.loads(path.read_bytes())
            counts.update(part["counts"])
            if part["shard"]["documents"]:
                shards[split].append(part["shard"])
            else:
                for file in work.joinpath("data").glob(f"{path.stem}.*"):
                    file.unlink()

    return {
        "counts": {name: counts[name] for name in _COUNTS},
        "left_out": {name: counts[name] for name in _LEFT_OUT},
        "shards": shards,
    }
