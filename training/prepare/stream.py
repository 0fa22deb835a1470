"""The tokens of a text folder as arrays, readable without TensorFlow."""

import itertools
import pathlib
import shutil
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console

from keras_fixedhead import FixedHeadTokenizer
from training.corpus.folder import SPLITS
from training.corpus.tokenized import (
    Corpus,
    Shard,
    check_shards,
    file_sha256,
    load_shards,
    read_corpus,
)
from training.prepare.configs import StreamConfig
from training.prepare.folder import Output


def prepare_stream(config: StreamConfig) -> dict:
    """Writes a folder of arrays, and returns its manifest."""
    corpus = read_corpus(config.data)
    names = [str(config.data / "manifest.json")]
    output = Output(config, names, data=corpus.manifest_sha256)
    if (made_before := output.made_before()) is not None:
        return made_before
    heldout = sum(len(shard.document_lengths) for shard in corpus.heldout)
    if heldout < 2:
        raise ValueError(
            f"`data` {str(config.data)!r} must have two held-out documents "
            f"at least, one to tune on and one to test on. Received: {heldout}"
        )
    # TensorFlow's error would not say which shard is damaged.
    with Console(stderr=True).status("Reading"):
        check_shards([*corpus.train, *corpus.heldout])
    with output.work_folder() as work:
        folder = work / "data"
        shutil.copy(config.data / "vocabulary.txt", folder)
        with Console(stderr=True).status("Writing"):
            counts = _write_splits(folder, corpus)
        sha256 = {
            split: file_sha256(folder / f"{split}.npy") for split in SPLITS
        }
        manifest = {"counts": counts, "left_out": {}, "sha256": sha256}
        return output.finish(work, manifest)


def _write_splits(folder: pathlib.Path, corpus: Corpus) -> dict[str, int]:
    """Writes the arrays; returns the counts of tokens and documents."""
    tokenizer = FixedHeadTokenizer(
        corpus.vocabulary, lowercase=corpus.lowercase
    )
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    dtype = np.dtype("<u2" if len(corpus.vocabulary) <= 2**16 else "<i4")
    tokens, documents = {}, {}
    for split, shards, first, step in (
        ("train", corpus.train, 0, 1),
        ("tuning", corpus.heldout, 0, 2),
        ("test", corpus.heldout, 1, 2),
    ):
        lengths = [n for shard in shards for n in shard.document_lengths]
        lengths = lengths[first::step]
        count = sum(int(length) + 2 for length in lengths)
        tokens[f"{split} tokens"] = count
        documents[f"{split} documents"] = len(lengths)
        array = np.lib.format.open_memmap(
            folder / f"{split}.npy", mode="w+", dtype=dtype, shape=(count,)
        )
        place = 0
        for document in itertools.islice(_documents(shards), first, None, step):
            row = [start, *document, end]
            array[place : place + len(row)] = row
            place += len(row)
        array.flush()
    return tokens | documents


def _documents(shards: Sequence[Shard]) -> Iterator[np.ndarray]:
    for shard in shards:
        loaded = load_shards([str(shard.path)])
        starts = loaded["document_starts"].numpy()
        yield from np.split(loaded["token_ids"].numpy(), starts[1:-1])
