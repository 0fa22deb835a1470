"""Warm-up records; TensorFlow's TFRecord reader and writer are the oracle."""

import numpy as np
import pytest
import tensorflow as tf

from export import messages
from export.files import warmup

TEXTS = ["c c c c", "a", "b b", "d d d d d d"]


def tokenize(batch):
    longest = max(len(text.split()) for text in batch)
    return {"token_ids": np.ones([len(batch), longest * 100], np.int32)}


def test_batches_are_short_middling_and_long():
    made = warmup.batches(TEXTS, [1, 3], tokenize)
    assert [batch for batch, _ in made] == [
        ("a",),
        ("b b",),
        ("d d d d d d",),
        ("a", "a", "a"),
        ("b b", "a", "b b"),
        # ("d ...", "c ...", "b b") would be 1,800 ids.
    ]
    assert made[-1][1]["token_ids"].shape == (3, 200)


def test_texts_of_a_file(tmp_path):
    file = tmp_path / "texts"
    file.write_text("one\n\n  \ntwo é\n", encoding="utf-8")
    assert warmup.read_texts(file) == ["one", "two é"]
    file.write_text("\n")
    with pytest.raises(ValueError, match="`warmup_texts` .* is empty"):
        warmup.read_texts(file)


REQUESTS = [
    warmup.request("texts", {"text": np.array([b"short", b"long"], object)}),
    warmup.request("ids", {"ids": np.arange(9, dtype=np.int32)}),
]


def test_round_trip(tmp_path):
    warmup.write(tmp_path, REQUESTS)
    assert warmup.read(tmp_path) == REQUESTS
    assert warmup.read(tmp_path / "elsewhere") == []
    records = tf.data.TFRecordDataset(str(tmp_path / warmup.FILE))
    logs = [
        messages.prediction_log_pb2.PredictionLog.FromString(record)
        for record in records.as_numpy_iterator()
    ]
    assert [log.predict_log.request for log in logs] == REQUESTS


def test_batch_sizes(tmp_path):
    found = warmup.read_batch_sizes(warmup.BATCHING_PARAMETERS)
    assert found == [1, 2, 4, 8, 16, 32]
    path = tmp_path / "batching_parameters.txt"
    path.write_text("max_batch_size { value: 3 }")
    with pytest.raises(ValueError, match="no `allowed_batch_sizes`"):
        warmup.read_batch_sizes(path)
