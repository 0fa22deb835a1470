"""The shards: what is written is read, and what is not what was written."""

import hashlib
import resource

import numpy as np
import pytest
import tensorflow as tf

from tests.training import tiny
from training.corpus.tokenized import (
    Document,
    check_shards,
    load_shards,
    read_corpus,
    write_shard,
)

# The lines of each document of each shard.
SHARDS = {
    "train-00000": [[[5, 6, 7], [8]], [[9, 5]]],
    "train-00001": [[[6, 7]], [[11, 5, 70_000, 9, 10], [8, 7], [6]], [[9, 10]]],
    "heldout-00000": [[[10, 9, 8]]],
}
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g".split()


def document(lines):
    return Document(np.concatenate(lines), np.array([len(x) for x in lines]))


@pytest.fixture
def folder(tmp_path):
    shards = {name: map(document, lines) for name, lines in SHARDS.items()}
    return tiny.write_shards(tmp_path, shards, VOCABULARY, lowercase=False)


def test_reads_and_loads(folder):
    corpus = read_corpus(folder)
    manifest = (folder / "manifest.json").read_bytes()
    assert corpus.manifest_sha256 == hashlib.sha256(manifest).hexdigest()
    assert corpus.vocabulary == VOCABULARY
    assert corpus.lowercase is False
    shards = [*corpus.train, *corpus.heldout]
    assert [shard.path.stem for shard in shards] == list(SHARDS)
    assert corpus.train[1].document_lengths.tolist() == [2, 8, 2]
    assert corpus.train[1].document_lengths.dtype == np.int32
    check_shards(shards)

    # In another order, in eager mode and in a graph of `tf.data`.
    paths = [str(shard.path) for shard in corpus.train[::-1]]
    mapped = tf.data.Dataset.from_tensors(paths).map(load_shards)
    lines = [
        line
        for name in ("train-00001", "train-00000")
        for document in SHARDS[name]
        for line in document
    ]
    for loaded in load_shards(tf.constant(paths)), mapped.get_single_element():
        assert {name: v.dtype.name for name, v in loaded.items()} == {
            "token_ids": "int32",
            "line_starts": "int64",
            "document_starts": "int64",
        }
        starts = loaded["line_starts"].numpy()
        assert starts[0] == 0 and len(starts) == len(lines) + 1
        ids = np.split(loaded["token_ids"].numpy(), starts[1:])
        assert [x.tolist() for x in ids] == [*lines, []]
        assert loaded["document_starts"].numpy().tolist() == [
            0, 2, 10, 12, 16, 18,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("manifest.json", lambda b: b"{}", "prepare text.*something else"),
        (
            "manifest.json",
            lambda b: b.replace(b'"text"', b'"pairs"'),
            r"prepare text.*Received: pairs",
        ),
        ("vocabulary.txt", lambda b: b + b"h\n", "vocabulary.txt is damaged"),
        ("train-00001.tfrecord", lambda b: b[:-1], "train-00001.tfrecord is d"),
    ],
)
def test_refuses_what_was_changed(folder, name, change, match):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=match):
        read_corpus(folder)


def test_damage_shows_when_loading(folder):
    corpus = read_corpus(folder)
    path = corpus.train[1].path
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    # Not what a start should take the time to find.
    assert read_corpus(folder).train
    paths = tf.constant([str(shard.path) for shard in corpus.train])
    with pytest.raises(tf.errors.DataLossError):
        load_shards(paths)
    with pytest.raises(ValueError, match="train-00001.tfrecord is damaged"):
        check_shards(corpus.train)
    path.unlink()
    with pytest.raises(tf.errors.NotFoundError, match="train-00001.tfrecord"):
        load_shards(paths)


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    documents = [Document(np.arange(90_000), np.array([90_000]))] * 3
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        with pytest.raises(OSError, match="train-00000.tfrecord: cannot be"):
            write_shard(tmp_path, "train-00000", documents)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
