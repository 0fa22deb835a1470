"""Arrays into messages and back; TensorFlow's own functions are the oracle."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

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


def test_short_list_is_filled_with_its_last_value():
    proto = messages.tensor_pb2.TensorProto(
        dtype=messages.types_pb2.DT_INT32, int_val=[3, 5]
    )
    proto.tensor_shape.dim.add(size=5)
    np.testing.assert_array_equal(
        messages.from_tensor_proto(proto), tf.make_ndarray(proto)
    )


@pytest.mark.parametrize(
    ("sizes", "fields", "message"),
    [
        ([2], {"tensor_content": b"123"}, "holds 3 bytes, not 8"),
        ([1], {"float_val": [1, 2]}, "holds 2 values, not 1"),
        ([-1], {"float_val": [1]}, "no definite shape"),
        ([10**9, 10**9], {"float_val": [1]}, "are filled up"),
    ],
)
def test_refuses(sizes, fields, message):
    proto = messages.tensor_pb2.TensorProto(
        dtype=messages.types_pb2.DT_FLOAT, **fields
    )
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    with pytest.raises(ValueError, match=message):
        messages.from_tensor_proto(proto)


def test_refuses_types_without_arrays():
    with pytest.raises(ValueError, match="complex128"):
        messages.to_tensor_proto(np.array([1j]))
    proto = messages.tensor_pb2.TensorProto(
        dtype=messages.types_pb2.DT_RESOURCE
    )
    with pytest.raises(ValueError, match="DT_RESOURCE"):
        messages.from_tensor_proto(proto)


def test_serving_needs_no_tensorflow_package(base_path):
    script = f"""
import sys
from export import serve, session
session.SavedModelSession({str(base_path / "3")!r})
assert not {{"tensorflow", "keras", "tensorflow_text"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_tensorflow_may_be_imported_later():
    script = """
from export import messages
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
assert tensor_pb2 is messages.tensor_pb2
assert isinstance(tf.make_tensor_proto([1.0]), tensor_pb2.TensorProto)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
