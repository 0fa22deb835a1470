"""The tokens of a text folder in arrays that need no TensorFlow to be read."""

import dataclasses
import hashlib
import itertools
import pathlib
import shutil
import tempfile

import numpy as np
from rich.console import Console

from training.corpus.stream import SPLITS
from training.prepare.configs import StreamConfig
from training.prepare.folder import arguments_of, finish, made_before
from training.prepare.sources import stamps


def prepare_stream(config: StreamConfig) -> dict:
    """Writes the folder of arrays that `config` describes.

    It holds `train.npy`, `tuning.npy` and `test.npy`, one array of token ids
    each, see `training.corpus.stream`; `vocabulary.txt`, `manifest.json` and
    `sources.json`. Of the held-out documents every other one is for the
    choice of learning rates, the rest for the test.

    Returns:
        The manifest of the folder.

    Raises:
        ValueError: `data` is no text folder, or has fewer than two held-out
            documents, or the folder is there and made of another.
        OSError: A file cannot be read or written.
    """
    # TensorFlow takes seconds to import, which `--help` need not wait for.
    from training.corpus.tokenized import check_shards, read_corpus

    corpus = read_corpus(config.data)
    arguments = arguments_of(config) | {"data": corpus.manifest_sha256}
    files = stamps([str(config.data / "manifest.json")])
    manifest = made_before(
        config.output, "stream", arguments, files, config.overwrite
    )
    if manifest is not None:
        return manifest
    heldout = sum(len(shard.document_lengths) for shard in corpus.heldout)
    if heldout < 2:
        raise ValueError(
            f"`data` {str(config.data)!r} must have two held-out documents "
            f"at least, one to tune on and one to test on. Received: {heldout}"
        )
    # Of a damaged shard TensorFlow would not say which it is.
    with Console(stderr=True).status("Reading"):
        check_shards([*corpus.train, *corpus.heldout])
    config.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{config.output.name}.", dir=config.output.parent
    ) as temporary:
        folder = pathlib.Path(temporary, "new")
        folder.mkdir()
        shutil.copyfile(
            config.data / "vocabulary.txt", folder / "vocabulary.txt"
        )
        with Console(stderr=True).status("Writing"):
            written = _write(folder, corpus)
        return finish(
            folder,
            config.output,
            {
                "kind": "stream",
                "arguments": arguments,
                "counts": {
                    **{f"{s} tokens": written[s].tokens for s in SPLITS},
                    **{f"{s} documents": written[s].documents for s in SPLITS},
                    "tokens in the vocabulary": len(corpus.vocabulary),
                },
                "left_out": {},
                "sha256": {s: written[s].sha256 for s in SPLITS},
            },
            files,
        )


@dataclasses.dataclass(frozen=True)
class _Written:
    """What is known of an array."""

    tokens: int
    documents: int
    sha256: str


def _write(folder, corpus):
    from keras_fixedhead import FixedHeadTokenizer

    tokenizer = FixedHeadTokenizer(
        corpus.vocabulary, lowercase=corpus.lowercase
    )
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    dtype = np.dtype("<u2" if len(corpus.vocabulary) <= 2**16 else "<i4")
    sources = {
        "train": (corpus.train, slice(None)),
        "tuning": (corpus.heldout, slice(0, None, 2)),
        "test": (corpus.heldout, slice(1, None, 2)),
    }
    written = {}
    for split, (shards, wanted) in sources.items():
        path = folder / f"{split}.npy"
        lengths = [n for shard in shards for n in shard.document_lengths]
        lengths = lengths[wanted]
        tokens = sum(int(length) + 2 for length in lengths)
        array = np.lib.format.open_memmap(
            path, mode="w+", dtype=dtype, shape=(tokens,)
        )
        place = 0
        documents = _documents(shards)
        for document in itertools.islice(
            documents, wanted.start, wanted.stop, wanted.step
        ):
            row = [start, *document, end]
            array[place : place + len(row)] = row
            place += len(row)
        array.flush()
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        written[split] = _Written(tokens, len(lengths), digest)
    return written


def _documents(shards):
    """Yields the token ids of documents, int32 arrays."""
    from training.corpus.tokenized import load_shards

    for shard in shards:
        loaded = load_shards([str(shard.path)])
        token_ids = loaded["token_ids"].numpy()
        starts = loaded["document_starts"].numpy()
        for start, end in zip(starts[:-1], starts[1:]):
            yield token_ids[start:end]
