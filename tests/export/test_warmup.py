"""Warm-up records; TensorFlow's TFRecord reader and writer are the oracle."""

import numpy as np
import pytest
import tensorflow as tf

from export import messages, warmup

CASES = {
    "texts": ({"text": np.array([b"short", b"longest"], object)}, {}),
    "ids": ({"ids": np.arange(9, dtype=np.int32).reshape(3, 3)}, {}),
}


def test_requests_of_each_batch_size():
    requests = warmup.requests(CASES)
    shapes = [
        (request.model_spec.signature_name, array.shape)
        for request in requests
        for array in map(messages.from_tensor_proto, request.inputs.values())
    ]
    assert shapes == [
        *(("texts", (size,)) for size in warmup.BATCH_SIZES),
        *(("ids", (size, 3)) for size in warmup.BATCH_SIZES),
    ]
    first = messages.from_tensor_proto(requests[0].inputs["text"])
    assert first.tolist() == [b"longest"]


def test_round_trip(tmp_path):
    requests = warmup.requests(CASES)
    warmup.write(tmp_path, requests)
    assert warmup.read(tmp_path) == requests
    records = tf.data.TFRecordDataset(str(tmp_path / warmup.FILE))
    logs = [
        messages.prediction_log_pb2.PredictionLog.FromString(record)
        for record in records.as_numpy_iterator()
    ]
    assert [log.predict_log.request for log in logs] == requests


def test_no_file_is_no_request(tmp_path):
    assert warmup.read(tmp_path) == []


def write_records(folder, *records):
    path = folder / warmup.FILE
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def test_refuses_other_records(tmp_path):
    log = messages.prediction_log_pb2.PredictionLog()
    log.classify_log.SetInParent()
    write_records(tmp_path, log.SerializeToString())
    with pytest.raises(ValueError, match="holds a classify_log record"):
        warmup.read(tmp_path)


def test_refuses_what_is_no_message(tmp_path):
    write_records(tmp_path, b"\xff\xff\xff")
    with pytest.raises(ValueError, match="no PredictionLog"):
        warmup.read(tmp_path)


@pytest.mark.parametrize("cut", [1, 29])
def test_refuses_a_file_cut_short(tmp_path, cut):
    warmup.write(tmp_path, warmup.requests(CASES))
    path = tmp_path / warmup.FILE
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match="ends within a record"):
        warmup.read(tmp_path)
