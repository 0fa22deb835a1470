"""Shards: the tokenized documents of a data folder, written and read.

A shard is a file of TFRecords, one `tf.train.Example` a document, with the
int64 lists `token_ids` (of all lines, without special tokens) and
`line_lengths` (tokens of each line). A NumPy file beside it holds the length of
each document, so that training plans its epochs without reading the shards.
"""

import dataclasses
import hashlib
import os
import pathlib
import typing
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from keras_fixedhead.convert.bert_files import read_vocabulary
from keras_fixedhead.files import replaced
from training.corpus.folder import changed, read_manifest


class Document(typing.NamedTuple):
    """Integer arrays: `token_ids` `[tokens]` and `line_lengths` `[lines]`."""

    token_ids: np.ndarray
    line_lengths: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of documents, and an int32 array of the tokens in each.

    `words`, between white space, is `None` in folders older than the count.
    """

    path: pathlib.Path
    document_lengths: np.ndarray
    sha256: str
    words: int | None = None


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A folder that `python -m training.prepare text` wrote."""

    vocabulary: list[str]
    lowercase: bool
    manifest_sha256: str
    train: list[Shard]
    heldout: list[Shard]


def write_shard(
    folder: pathlib.Path, name: str, documents: Iterable[Document]
) -> dict:
    """Writes a shard, and returns its entry of the manifest."""
    path = folder / f"{name}.tfrecord"
    lengths = []
    with replaced(path) as partial:
        try:
            with tf.io.TFRecordWriter(os.fspath(partial)) as writer:
                for document in documents:
                    writer.write(_serialize(document))
                    lengths.append(len(document.token_ids))
        except tf.errors.OpError as error:
            raise OSError(f"{path}: cannot be written: {error}") from error
        digest = file_sha256(partial)
        num_bytes = partial.stat().st_size
    with replaced(_lengths_path(path)) as partial:
        with open(partial, "wb") as stream:
            np.save(stream, np.array(lengths, np.int32))
    return {
        "name": path.name,
        "documents": len(lengths),
        "tokens": sum(lengths),
        "bytes": num_bytes,
        "sha256": digest,
    }


def read_corpus(folder: str | os.PathLike) -> Corpus:
    """Reads a data folder, apart from the content of the shards."""
    folder = pathlib.Path(folder)
    manifest, digest = read_manifest(folder, "text")
    vocabulary = folder / "vocabulary.txt"
    if file_sha256(vocabulary) != manifest["vocabulary_sha256"]:
        raise changed(vocabulary)
    shards: dict[str, list[Shard]] = {"train": [], "heldout": []}
    for split, entries in manifest["shards"].items():
        for entry in entries:
            path = folder / entry["name"]
            lengths = np.load(_lengths_path(path))
            if path.stat().st_size != entry["bytes"]:
                raise changed(path)
            words = entry.get("words")
            shard = Shard(path, lengths, entry["sha256"], words)
            shards[split].append(shard)
    return Corpus(
        vocabulary=read_vocabulary(vocabulary),
        lowercase=manifest["arguments"]["lowercase"],
        manifest_sha256=digest,
        **shards,
    )


def load_shards(paths: tf.Tensor) -> dict[str, tf.Tensor]:
    """Reads the shards of a string tensor `[shards]`, in graphs too.

    Returns `token_ids`, int32 `[N]`, and `line_starts` and `document_starts`,
    int64 `[count + 1]`, which end with N.
    """
    # More than there are, so that all of them are one batch.
    records = tf.data.TFRecordDataset(paths).batch(2**40).get_single_element()
    ragged = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    documents = tf.io.parse_example(
        records, {name: ragged for name in Document._fields}
    )
    token_ids = documents["token_ids"]  # [documents, None]
    line_lengths = documents["line_lengths"].flat_values  # [lines]
    return {
        "token_ids": tf.cast(token_ids.flat_values, tf.int32),
        "line_starts": tf.concat([[0], tf.cumsum(line_lengths)], axis=0),
        "document_starts": token_ids.row_splits,
    }


def check_shards(shards: Iterable[Shard]) -> None:
    """Reads shards through; a `ValueError` names one that was changed."""
    for shard in shards:
        if file_sha256(shard.path) != shard.sha256:
            raise changed(shard.path)


def _serialize(document):
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in document._asdict().items()
    }
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString(deterministic=True)


def _lengths_path(path):
    return path.with_suffix(".lengths.npy")


def file_sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
