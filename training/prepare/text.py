"""Documents of token ids to pre-train and to evaluate on, in shards.

Worker processes tokenize and write each shard once. The work folder has in
`data/` what will be the data folder, and in `parts/` the counts of each
finished shard. Sources and arguments alone decide what a shard holds, so a run
that is started again makes the missing shards.
"""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf
from rich.progress import DownloadColumn, TransferSpeedColumn

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.convert.bert_files import read_vocabulary
from keras_fixedhead.files import replaced, write_json
from keras_fixedhead.progress import progress
from training.corpus import vocabulary
from training.corpus.tokenized import Document, write_shard
from training.engine.configs import check_positive
from training.prepare import documents as counted
from training.prepare.configs import TextConfig
from training.prepare.documents import Counts
from training.prepare.folder import Output
from training.prepare.sources import (
    Sources,
    check_outside,
    find_sources,
    sample,
    without,
)

_SPLITS = {"train": "training", "heldout": "held-out"}

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

# Of a worker: the graph tokenizes while Python cuts and writes.
_THREADS = 2
_BATCH_BYTES = 2**18
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


def _write_shards(config, sources, work):
    """Writes missing shards, and returns the counts of what was read."""
    cpus = len(os.sched_getaffinity(0))
    workers = config.workers or max(cpus // _THREADS, 1)
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


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05}"


def divide(
    documents: Iterable[tuple[str, bytes]], shard_bytes: int
) -> Iterator[tuple[str, list[bytes]]]:
    """Yields names of shards and their documents, of at most `shard_bytes`."""
    gathered: dict[str, list[bytes]] = {split: [] for split in _SPLITS}
    sizes = dict.fromkeys(_SPLITS, 0)
    numbers = dict.fromkeys(_SPLITS, 0)
    ends = [(split, None) for split in _SPLITS]
    for split, document in itertools.chain(documents, ends):
        full = document is None or sizes[split] + len(document) > shard_bytes
        if gathered[split] and full:
            yield shard_name(split, numbers[split]), gathered[split]
            gathered[split], sizes[split] = [], 0
            numbers[split] += 1
        if document is not None:
            gathered[split].append(document)
            sizes[split] += len(document)


def write_shards(
    shards: Iterable[tuple[str, list[bytes]]],
    work: pathlib.Path,
    lowercase: bool,
    pool: concurrent.futures.Executor,
    max_pending: int,
) -> None:
    """Writes the shards that the work folder lacks; it has the vocabulary.

    At most `max_pending` shards are in memory: reading waits for writing.
    """
    pending: collections.deque = collections.deque()
    for name, documents in shards:
        if not part_path(work, name).exists():
            pending.append(
                pool.submit(write_part, work, name, documents, lowercase)
            )
        if len(pending) == max_pending:
            pending.popleft().result()
    for future in pending:
        future.result()


@contextlib.contextmanager
def worker_pool(workers: int) -> Iterator[concurrent.futures.Executor]:
    """Yields a pool of processes, each of about a gigabyte."""
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        # Inherits no threads or memory of this process.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    try:
        yield pool
    except concurrent.futures.BrokenExecutor as error:
        raise ChildProcessError(
            "a worker process was killed, perhaps because memory ran out; "
            f"--workers sets how many there are (now {workers})"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker():
    # Ctrl-C is for the parent, which then stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(_THREADS)


def _exit_with_parent():
    # A worker whose parent was killed would wait for work forever.
    parent = multiprocessing.parent_process()
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def part_path(work: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the file with the counts of a shard, if that is written."""
    return work / "parts" / f"{name}.json"


def write_part(
    work: pathlib.Path, name: str, documents: Iterable[bytes], lowercase: bool
) -> None:
    """Writes a shard and then its part into the work folder."""
    counts = Counts()
    tokenizer = _tokenizer(work / "data" / "vocabulary.txt", lowercase)
    tokenized = _tokenize(documents, tokenizer, counts)
    shard = write_shard(work / "data", name, tokenized)
    shard["words"] = counts[counted.WORDS]
    split = _SPLITS[name.partition("-")[0]]
    for what in ("documents", "words", "tokens"):
        counts[f"{split} {what}"] = shard[what]
    write_json(part_path(work, name), {"shard": shard, "counts": counts})


@functools.cache
def _tokenizer(path, lowercase):
    """Returns the models' tokenizer as a graph, and its id of unknown words."""
    # As the models read it.
    tokens = read_vocabulary(path)
    tokenizer = FixedHeadTokenizer(tokens, lowercase=lowercase)
    graph = tf.function(
        tokenizer.tokenize_in_graph,
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    return graph, tokenizer.unk_token_id


def _tokenize(documents, tokenizer, counts):
    """Yields `Document`s of at least two tokens, in order."""
    graph, unknown = tokenizer

    def tokenize_lines(batch):
        ids = graph(tf.constant(list(itertools.chain.from_iterable(batch))))
        return ids.flat_values.numpy(), ids.row_lengths().numpy()

    batches = list(_batch(documents))
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        for batch, (token_ids, line_lengths) in zip(
            batches, threads.map(tokenize_lines, batches)
        ):
            counts[counted.UNKNOWN] += int((token_ids == unknown).sum())
            counts[counted.EMPTY_LINES] += int((line_lengths == 0).sum())
            ends = np.cumsum([len(lines) for lines in batch])
            all_lengths = np.split(line_lengths, ends[:-1])
            ends = np.cumsum([lengths.sum() for lengths in all_lengths])
            all_tokens = np.split(token_ids, ends[:-1])
            for lines, lengths, tokens in zip(batch, all_lengths, all_tokens):
                if len(tokens) < 2:
                    counts[counted.SHORT] += 1
                    continue
                counts[counted.WORDS] += sum(
                    len(text.decode().split())
                    for text, length in zip(lines, lengths)
                    if length
                )
                lengths = lengths[lengths > 0]
                counts[counted.LINES] += len(lengths)
                yield Document(tokens, lengths)


def _batch(documents):
    """Yields lists of documents, each a list of lines."""
    batch, size = [], 0
    for document in documents:
        batch.append(document.split(b"\n"))
        size += len(document)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def summarize(work: pathlib.Path, met: Counts) -> dict:
    """Adds up the parts: `counts`, `left_out` and `shards` of the manifest.

    `met` counts what was read. Removes shards without a document.
    """
    counts = Counts(met)
    shards: dict[str, list[dict]] = {split: [] for split in _SPLITS}
    for split in _SPLITS:
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
