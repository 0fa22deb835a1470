"""Shards tokenized and written by worker processes, each of them once.

The work folder of an unfinished run has in `data/` what will be the data folder
and in `parts/` a part, the counts of a finished shard, for each. What a shard
holds depends on the sources and arguments alone, so a run that is started again
makes the missing shards, in any number of processes.
"""

import collections
import concurrent.futures
import functools
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator

import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.files import replaced
from training.corpus.tokenized import Document, write_shard
from training.corpus.vocabulary import read_vocabulary
from training.prepare import documents as counted
from training.prepare.workers import THREADS

SPLITS = ("train", "heldout")

# Five digits, so that names sort like numbers.
_MAX_SHARDS = 100_000

_BATCH_BYTES = 2**18


def shard_name(split: str, number: int) -> str:
    if number >= _MAX_SHARDS:
        raise ValueError(
            "`shard_megabytes` must be larger: it would take more than "
            f"{_MAX_SHARDS} shards"
        )
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
    pending = set()
    for name, documents in shards:
        if is_written(work, name):
            continue
        pending.add(pool.submit(write_part, work, name, documents, lowercase))
        if len(pending) == max_pending:
            done, pending = concurrent.futures.wait(
                pending, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                future.result()
    for future in concurrent.futures.as_completed(pending):
        future.result()


def is_written(work: pathlib.Path, name: str) -> bool:
    return _part_path(work, name).exists()


def write_part(
    work: pathlib.Path, name: str, documents: Iterable[bytes], lowercase: bool
) -> None:
    """Writes a shard and then its part into the work folder."""
    counts: collections.Counter[str] = collections.Counter()
    left_out: collections.Counter[str] = collections.Counter()
    tokenizer = _tokenizer(work / "data" / "vocabulary.txt", lowercase)
    tokenized = _tokenize(documents, tokenizer, counts, left_out)
    shard = write_shard(work / "data", name, tokenized)
    part = {
        "shard": shard | {"words": counts[counted.WORDS]},
        "counts": counts,
        "left_out": left_out,
    }
    with replaced(_part_path(work, name)) as path:
        path.write_text(json.dumps(part), encoding="utf-8")


def _part_path(work, name):
    return work / "parts" / f"{name}.json"


@functools.cache
def _tokenizer(vocabulary, lowercase):
    """Returns the models' tokenizer as a graph, and its id of unknown words."""
    tokenizer = FixedHeadTokenizer(
        read_vocabulary(vocabulary), lowercase=lowercase
    )
    graph = tf.function(
        tokenizer.tokenize_in_graph,
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    return graph, tokenizer.unk_token_id


def _tokenize(documents, tokenizer, counts, left_out):
    """Yields `Document`s of at least two tokens, in order."""
    graph, unknown = tokenizer

    def tokenize_lines(batch):
        lines = [line for document in batch for line in document]
        ids = graph(tf.constant(lines))
        return ids.flat_values.numpy(), ids.row_lengths().numpy()

    batches = list(_batch(documents))
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        for batch, (token_ids, line_lengths) in zip(
            batches, threads.map(tokenize_lines, batches)
        ):
            counts[counted.UNKNOWN] += int((token_ids == unknown).sum())
            left_out[counted.EMPTY_LINES] += int((line_lengths == 0).sum())
            token = line = 0
            for lines in batch:
                lengths = line_lengths[line : line + len(lines)]
                line += len(lines)
                tokens = token_ids[token : token + lengths.sum()]
                token += len(tokens)
                if len(tokens) < 2:
                    left_out[counted.SHORT] += 1
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


def summarize(work: pathlib.Path, met: collections.Counter) -> dict:
    """Adds up the parts: `counts`, `left_out` and `shards` of the manifest.

    `met` is what `Tally.counts` counted. Removes shards without a document.
    """
    counts: collections.Counter[str] = collections.Counter()
    left_out: collections.Counter[str] = collections.Counter()
    shards: dict[str, list[dict]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for path in sorted(work.joinpath("parts").glob(f"{split}-*.json")):
            part = json.loads(path.read_bytes())
            counts.update(part["counts"])
            left_out.update(part["left_out"])
            if part["shard"]["documents"]:
                shards[split].append(part["shard"])
            else:
                for file in work.joinpath("data").glob(f"{path.stem}.*"):
                    file.unlink()

    def total(split, name):
        return sum(shard[name] for shard in shards[split])

    return {
        "counts": {
            "training documents": total("train", "documents"),
            "held-out documents": total("heldout", "documents"),
            counted.LINES: counts[counted.LINES],
            "training words": total("train", "words"),
            "held-out words": total("heldout", "words"),
            "training tokens": total("train", "tokens"),
            "held-out tokens": total("heldout", "tokens"),
            counted.UNKNOWN: counts[counted.UNKNOWN],
            counted.BAD_UTF8: met[counted.BAD_UTF8],
            counted.LONG_LINES: met[counted.LONG_LINES],
            counted.LONG_DOCUMENTS: met[counted.LONG_DOCUMENTS],
        },
        "left_out": {
            counted.EMPTY: met[counted.EMPTY],
            counted.LONG_JSON: met[counted.LONG_JSON],
            counted.SHORT: left_out[counted.SHORT],
            counted.EMPTY_LINES: left_out[counted.EMPTY_LINES],
        },
        "shards": shards,
    }
