"""Shards written by worker processes, each of them once.

The work folder of an unfinished run holds what will be the data folder in
`data/` and, in `parts/`, an account of every shard that is finished. What a
shard holds depends on the sources and arguments alone, so a run that is started
again makes the shards that are missing, in as many processes as it likes.
"""

import collections
import concurrent.futures
import functools
import json
import pathlib
import typing
from collections.abc import Callable, Iterable, Iterator

from keras_fixedhead.files import replaced
from training.prepare.documents import (
    BAD_UTF8,
    EMPTY,
    EMPTY_LINES,
    LINES,
    LONG_DOCUMENTS,
    LONG_JSON,
    LONG_LINES,
    SHORT,
    UNKNOWN,
    WORDS,
    Tally,
)

SPLITS = ("train", "heldout")

# As many as five digits number: names sort like what they name.
_MAX_SHARDS = 100_000


class Unit(typing.NamedTuple):
    """What one shard is made of.

    Attributes:
        name: Name of the shard.
        text: The documents, with blank lines between.
        bytes_read: Bytes of the sources read since the unit before.
    """

    name: str
    text: bytes
    bytes_read: int


def shard_name(split: str, number: int) -> str:
    """Names a shard; the names of a split sort like their numbers.

    Raises:
        ValueError: There are too many shards.
    """
    if number >= _MAX_SHARDS:
        raise ValueError(
            "`shard_megabytes` must be larger: it would take more than "
            f"{_MAX_SHARDS} shards"
        )
    return f"{split}-{number:05}"


def divide(
    documents: Iterable[tuple[str, bytes]], shard_bytes: int, tally: Tally
) -> Iterator[Unit]:
    """Yields units of whole documents.

    Args:
        documents: The split of each document, and the document.
        shard_bytes: The most text of a unit; a longer document is one alone.
        tally: Knows how much is read.
    """
    gathered: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    sizes = dict.fromkeys(SPLITS, 0)
    numbers = dict.fromkeys(SPLITS, 0)
    reported = 0

    def take(split):
        nonlocal reported
        unit = Unit(
            shard_name(split, numbers[split]),
            b"\n\n".join(gathered[split]),
            tally.bytes_read - reported,
        )
        gathered[split], sizes[split] = [], 0
        numbers[split] += 1
        reported = tally.bytes_read
        return unit

    for split, document in documents:
        if gathered[split] and sizes[split] + len(document) > shard_bytes:
            yield take(split)
        gathered[split].append(document)
        sizes[split] += len(document)
    for split in SPLITS:
        if gathered[split]:
            yield take(split)


def write_shards(
    units: Iterable[Unit],
    work: pathlib.Path,
    lowercase: bool,
    pool: concurrent.futures.Executor,
    max_pending: int,
    advance: Callable[[int], None],
) -> None:
    """Writes the shards that the work folder lacks.

    Args:
        units: What to write; reading waits where writing does not keep up.
        work: The work folder; has the vocabulary.
        lowercase: Whether to lower-case.
        pool: Where to write.
        max_pending: The most units in memory.
        advance: Called with the `bytes_read` of each unit that is done.

    Raises:
        OSError: A shard cannot be written.
    """
    pending: dict[concurrent.futures.Future, int] = {}
    for unit in units:
        if is_written(work, unit.name):
            advance(unit.bytes_read)
            continue
        future = pool.submit(_write_unit, work, unit, lowercase)
        pending[future] = unit.bytes_read
        if len(pending) == max_pending:
            done, _ = concurrent.futures.wait(
                pending, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                future.result()
                advance(pending.pop(future))
    for future in concurrent.futures.as_completed(list(pending)):
        future.result()
        advance(pending[future])


def is_written(work: pathlib.Path, name: str) -> bool:
    """Whether the work folder has a shard and the account of it."""
    return _part_path(work, name).exists()


def write_part(
    work: pathlib.Path, name: str, documents: Iterable[bytes], lowercase: bool
) -> None:
    """Writes a shard and then the account of it into the work folder."""
    # The processes that only read sources do without TensorFlow.
    from training.corpus.tokenized import write_shard

    tokenize = _tokenizer(work / "data" / "vocabulary.txt", lowercase)
    counts, left_out = collections.Counter(), collections.Counter()
    shard = write_shard(
        work / "data", name, tokenize(documents, counts, left_out)
    )
    part = {
        "shard": shard | {"words": counts[WORDS]},
        "counts": counts,
        "left_out": left_out,
    }
    with replaced(_part_path(work, name)) as path:
        path.write_text(json.dumps(part), encoding="utf-8")


def summarize(work: pathlib.Path, met: collections.Counter) -> dict:
    """Adds up the accounts of all shards.

    Args:
        work: The work folder. Shards without a document are removed.
        met: What was met while reading the sources.

    Returns:
        The entries `counts`, `left_out` and `shards` of the manifest.
    """
    counts, left_out = collections.Counter(), collections.Counter()
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
            LINES: counts[LINES],
            "training words": total("train", "words"),
            "held-out words": total("heldout", "words"),
            "training tokens": total("train", "tokens"),
            "held-out tokens": total("heldout", "tokens"),
            UNKNOWN: counts[UNKNOWN],
            **{
                name: met[name]
                for name in (BAD_UTF8, LONG_LINES, LONG_DOCUMENTS)
            },
        },
        "left_out": {
            EMPTY: met[EMPTY],
            LONG_JSON: met[LONG_JSON],
            SHORT: left_out[SHORT],
            EMPTY_LINES: left_out[EMPTY_LINES],
        },
        "shards": shards,
    }


def _write_unit(work, unit, lowercase):
    write_part(work, unit.name, unit.text.split(b"\n\n"), lowercase)


def _part_path(work, name):
    return work / "parts" / f"{name}.json"


@functools.cache
def _tokenizer(vocabulary, lowercase):
    from training.corpus.vocabulary import read_vocabulary
    from training.prepare.tokens import DocumentTokenizer

    return DocumentTokenizer(read_vocabulary(vocabulary), lowercase)
