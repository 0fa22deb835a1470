"""Shards of token ids, tokenized and written by worker processes.

The work folder has in `data/` what will be the data folder, and in `parts/`
the counts of each finished shard.
"""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.convert.bert_files import read_vocabulary
from keras_fixedhead.files import write_json
from training.corpus.tokenized import Document, write_shard
from training.prepare import documents as counted
from training.prepare.documents import Counts

SPLITS = {"train": "training", "heldout": "held-out"}

# Of a worker: the graph tokenizes while Python cuts and writes.
THREADS = 2
_BATCH_BYTES = 2**18


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05}"


def divide(
    documents: Iterable[tuple[str, bytes]], shard_bytes: int
) -> Iterator[tuple[str, list[bytes]]]:
    """Yields names of shards and their documents, of at most `shard_bytes`."""
    gathered: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    sizes = dict.fromkeys(SPLITS, 0)
    numbers = dict.fromkeys(SPLITS, 0)
    ends = [(split, None) for split in SPLITS]
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
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)


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
    split = SPLITS[name.partition("-")[0]]
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
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
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
