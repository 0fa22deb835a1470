"""The tokenized documents of a data folder: how they are written and read.

A shard is a file of TFRecords, one `tf.train.Example` a document, with the
int64 lists `token_ids` (those of all lines, without special tokens) and
`line_lengths` (tokens of each line). A NumPy file beside it holds the length of
each document, so that training plans its epochs without reading the shards.

Shape letters: N tokens of all documents, L their lines, D documents.
"""

import dataclasses
import hashlib
import os
import pathlib
import typing
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from keras_fixedhead.files import replaced
from training.corpus.folder import read_manifest
from training.corpus.vocabulary import read_vocabulary


class Document(typing.NamedTuple):
    """A tokenized document.

    Attributes:
        token_ids: Integer array `[tokens]`, those of all lines.
        line_lengths: Integer array `[lines]`, each above 0; their sum is the
            number of tokens.
    """

    token_ids: np.ndarray
    line_lengths: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of documents.

    Attributes:
        path: The file.
        document_lengths: int32 array `[documents]`, tokens of each.
        sha256: What the content of the file hashes to.
        words: What stands between white space in the text of the documents;
            None where the folder is older than the count.
    """

    path: pathlib.Path
    document_lengths: np.ndarray
    sha256: str
    words: int | None = None


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What `python -m training.prepare text` wrote.

    Attributes:
        folder: The data folder.
        vocabulary: The tokens, by their ids.
        lowercase: Whether the documents were lower-cased.
        manifest_sha256: What the manifest hashes to. It holds the hash of
            every shard, and so names the whole content.
        train: Shards to train on.
        heldout: Shards to evaluate on; may be none.
    """

    folder: pathlib.Path
    vocabulary: list[str]
    lowercase: bool
    manifest_sha256: str
    train: list[Shard]
    heldout: list[Shard]


def write_shard(
    folder: pathlib.Path, name: str, documents: Iterable[Document]
) -> dict:
    """Writes the files of one shard, each of them whole or not at all.

    Args:
        folder: Where to.
        name: Name of the shard, such as `train-00000`.
        documents: What to write, in this order.

    Returns:
        The entry of the manifest: `name`, `documents`, `tokens`, `bytes`,
        `sha256`.

    Raises:
        OSError: The files cannot be written.
    """
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
        digest = _sha256(partial)
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
    """Reads a data folder, all of it but the content of the shards.

    Raises:
        OSError: A file is missing or cannot be read.
        ValueError: The folder is none of `python -m training.prepare text`,
            or a file in it is not the one that was written.
    """
    folder = pathlib.Path(folder)
    manifest, digest = read_manifest(folder, "text")
    vocabulary = folder / "vocabulary.txt"
    if _sha256(vocabulary) != manifest["vocabulary_sha256"]:
        raise ValueError(
            f"{vocabulary} is not the one that the shards were made with. "
            "Prepare the folder anew"
        )
    shards = {
        split: [_read_shard(folder, entry) for entry in entries]
        for split, entries in manifest["shards"].items()
    }
    return Corpus(
        folder=folder,
        vocabulary=read_vocabulary(vocabulary),
        lowercase=manifest["arguments"]["lowercase"],
        manifest_sha256=digest,
        train=shards["train"],
        heldout=shards["heldout"],
    )


def load_shards(paths: tf.Tensor) -> dict[str, tf.Tensor]:
    """Reads shards whole, as TensorFlow operations (for `tf.data` too).

    Args:
        paths: String tensor `[shards]`.

    Returns:
        - `token_ids`: int32 `[N]`, the documents of the shards in order, one
          after the other.
        - `line_starts`: int64 `[L + 1]`, where in `token_ids` each line
          starts, and N.
        - `document_starts`: int64 `[D + 1]`, where each document starts, and
          N.

    Raises:
        tf.errors.NotFoundError: A shard is missing; names it.
        tf.errors.DataLossError: A shard is damaged; `check_shards` finds out
            which.
    """
    # More than there are: all of them are one batch.
    records = tf.data.TFRecordDataset(paths).batch(2**40).get_single_element()
    ragged = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    documents = tf.io.parse_example(
        records, {name: ragged for name in Document._fields}
    )
    token_ids = documents["token_ids"]  # [D, None]
    line_lengths = documents["line_lengths"].flat_values  # [L]
    return {
        "token_ids": tf.cast(token_ids.flat_values, tf.int32),
        "line_starts": tf.concat([[0], tf.cumsum(line_lengths)], axis=0),
        "document_starts": token_ids.row_splits,
    }


def check_shards(shards: Iterable[Shard]) -> None:
    """Reads shards through, to find the one that is damaged.

    Raises:
        OSError: A shard cannot be read.
        ValueError: A shard is not the file that was written; names it.
    """
    for shard in shards:
        if _sha256(shard.path) != shard.sha256:
            raise _changed(shard.path)


def _serialize(document):
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        for name, values in document._asdict().items()
    }
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString(deterministic=True)


def _read_shard(folder, entry):
    path = folder / entry["name"]
    lengths = np.load(_lengths_path(path))
    if (
        path.stat().st_size != entry["bytes"]
        or len(lengths) != entry["documents"]
        or lengths.sum(dtype=np.int64) != entry["tokens"]
    ):
        raise _changed(path)
    return Shard(path, lengths, entry["sha256"], entry.get("words"))


def _lengths_path(path):
    return path.with_suffix(".lengths.npy")


def _sha256(path):
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _changed(path):
    return ValueError(
        f"{path} is damaged, or was changed after it was written. Prepare the "
        "folder anew"
    )
