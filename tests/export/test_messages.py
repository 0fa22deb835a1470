"""Arrays into messages and back; TensorFlow's own functions are the oracle."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from export import messages

ARRAYS = [
    np.array([[1.5, -2.25, 1e-30]], np.float32),
    np.array([[0.1], [np.inf]], np.float64),
    np.array([0.1, 65504], np.float16),
    np.array([0.1, -3.0], ml_dtypes.bfloat16),
    np.array([[[-128, 127]]], np.int8),
    np.array([255], np.uint8),
    np.array([-(2**15)], np.int16),
    np.array([2**31 - 1, -1], np.int32),
    np.array([2**63 - 1], np.int64),
    np.array([True, False]),
    np.array([b"", b"\xff\x00", "é".encode()], object),
    np.array(7, np.int32),
    np.zeros([0, 3], np.float32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_equals_tensorflow(array):
    ours = messages.to_tensor_proto(array)
    np.testing.assert_array_equal(tf.make_ndarray(ours), array)
    assert tf.make_ndarray(ours).dtype == array.dtype
    theirs = tf.make_tensor_proto(array, shape=array.shape)
    for proto in (ours, theirs):
        back = messages.from_tensor_proto(proto)
        np.testing.assert_array_equal(back, array)
        assert back.dtype == array.dtype


def proto(text):
    return text_format.Parse(text, messages.tensor_pb2.TensorProto())


def tensor(dtype, values, *shape):
    dims = " ".join(f"dim {{ size: {size} }}" for size in shape)
    return proto(f"dtype: {dtype} tensor_shape {{ {dims} }} {values}")


ODD = [
    tensor("DT_INT32", "int_val: 3 int_val: 5", 5),
    tensor("DT_FLOAT", "float_val: 1 float_val: 2", 1),
    tensor("DT_FLOAT", "", 2),
    tensor("DT_FLOAT", "int_val: 7", 1),
    tensor("DT_FLOAT", 'tensor_content: "abc"', 0),
    tensor("DT_FLOAT", 'tensor_content: "abc"', 1),
    tensor("DT_FLOAT", 'tensor_content: "abcdefgh"', 1),
    tensor("DT_INT8", "int_val: 300 int_val: -129", 3),
    tensor("DT_UINT16", "int_val: -1", 1),
    tensor("DT_HALF", "half_val: 80896 half_val: -1024", 2),
    tensor("DT_BOOL", "bool_val: true", 3),
    tensor("DT_BOOL", r'tensor_content: "\001\002"', 2),
    tensor("DT_STRING", r'string_val: "a\000" string_val: "b"', 4),
    tensor("DT_STRING", "", 2),
    tensor("DT_STRING", r'tensor_content: "\001\002abc"', 2),
    tensor("DT_STRING", r'tensor_content: "\001\002ab"', 2),
    tensor("DT_STRING", r'tensor_content: "\001\002abcd"', 2),
    tensor("DT_STRING", r'tensor_content: "\001\377"', 2),
    tensor("DT_STRING", r'tensor_content: "\377\377\377\377\377\1"', 1),
    tensor("DT_FLOAT", "float_val: 1", -1),
    tensor("DT_FLOAT", "float_val: 1", 2, -3, 0),
    tensor("DT_FLOAT", "float_val: 1", 2**62, 2**62),
    tensor("DT_FLOAT", "float_val: 1", 0, 2**62, 2**62),
    tensor("DT_FLOAT", "float_val: 1", *[1] * 64),
    tensor("DT_FLOAT", "float_val: 1", *[1] * 255),
    proto("dtype: DT_FLOAT tensor_shape { unknown_rank: true } float_val: 1"),
    proto("tensor_shape { dim { size: 1 } } float_val: 1"),
    proto("dtype: DT_FLOAT"),
]


@pytest.mark.parametrize("odd", ODD, ids=lambda p: str(p)[-60:])
def test_reads_odd_messages_as_tensorflow(odd):
    try:
        expected = tf.io.parse_tensor(
            odd.SerializeToString(), tf.as_dtype(odd.dtype or 1)
        ).numpy()
    except tf.errors.InvalidArgumentError:
        with pytest.raises(ValueError):
            messages.from_tensor_proto(odd)
    else:
        read = messages.from_tensor_proto(odd)
        np.testing.assert_array_equal(read, expected)
        assert read.dtype == expected.dtype


def test_refuses_what_is_no_array():
    for dtype in ("DT_RESOURCE", "DT_VARIANT", "DT_FLOAT_REF"):
        with pytest.raises(ValueError, match=dtype):
            messages.from_tensor_proto(tensor(dtype, "", 1))
    odd = tensor("DT_FLOAT", "float_val: 1", 1)
    odd.dtype = 9999
    with pytest.raises(ValueError, match="9999"):
        messages.from_tensor_proto(odd)
    # A few bytes do not fill the memory.
    for dtype in ("DT_FLOAT", "DT_STRING"):
        with pytest.raises(ValueError, match="are filled up"):
            messages.from_tensor_proto(tensor(dtype, "", 10**5, 10**5))


def test_serving_needs_no_tensorflow_package(half_plus):
    script = f"""
import sys
from export import serve, session
session.SavedModelSession({str(half_plus / "1")!r})
assert not {{"tensorflow", "keras", "tensorflow_text"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_starts_without_keras(tmp_path, base_path):
    """Keras and its backend take longer to import than a search takes."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": "a lazy dog"}))
    output = ["--output", tmp_path / "index", "--corpus", corpus]
    search = ["--index", tmp_path / "index", "--query", "a dog"]
    for words in (["export.index", *output], ["export.search", *search]):
        words = ["-m", *words, "--saved_model", base_path]
        ended = subprocess.run(
            [sys.executable, "-X", "importtime", *words],
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        imported = {
            line.split("|")[-1].strip() for line in ended.stderr.splitlines()
        }
        assert "faiss" in imported
        assert not {"keras", "jax", "tensorflow.python"} & imported
