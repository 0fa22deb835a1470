"""JSON of answers; `json_tensor_test.cc` has the same cases."""

import json

import numpy as np
import pytest

from export import messages, session
from export.stand_in import json_tensor
from export.stand_in.json_tensor import COLUMNAR, ROW

TYPES = messages.types_pb2


def tensors(document, data_type):
    infos = {"x": messages.meta_graph_pb2.TensorInfo(dtype=data_type)}
    (array,) = json_tensor.to_tensors(document, infos)[0].values()
    return array


def test_numbers_take_the_type_of_the_signature():
    document = json_tensor.parse(b'{"inputs": [[1, 2.5], [NaN, -Infinity]]}')
    array = tensors(document, TYPES.DT_FLOAT)
    expected = np.array([[1, 2.5], [np.nan, -np.inf]], np.float32)
    np.testing.assert_array_equal(array, expected)
    assert array.dtype == np.float32
    array = tensors({"instances": [True, False]}, TYPES.DT_BOOL)
    assert array.tolist() == [True, False]
    assert tensors({"inputs": 7}, TYPES.DT_INT64).shape == ()


@pytest.mark.parametrize("value", [2**24, -(2**24), 1e39, 10**400])
def test_numbers_that_would_lose_digits(value):
    assert tensors({"inputs": 2**24 - 1}, TYPES.DT_FLOAT) == 2**24 - 1
    with pytest.raises(session.StatusError, match="to float without loss"):
        tensors({"inputs": value}, TYPES.DT_FLOAT)


def test_lists_nested_without_end():
    document = json_tensor.parse(b'{"inputs": ' + b"[" * 99 + b"]" * 99 + b"}")
    with pytest.raises(session.StatusError, match="list at unexpected level"):
        tensors(document, TYPES.DT_INT32)


def test_floats_have_the_digits_of_their_type():
    array = np.array([[0.1, 1.0, 9e6, 3e-5, 1 / 3]], np.float32)
    text = json_tensor.to_json({"x": array}, ROW).decode()
    assert text == '{"predictions": [[0.1, 1.0, 9000000.0, 3e-05, 0.33333334]]}'
    back = np.array(json.loads(text)["predictions"], np.float32)
    np.testing.assert_array_equal(back, array)


def test_numbers_that_are_none():
    array = np.array([np.nan, np.inf, -np.inf], np.float32)
    text = json_tensor.to_json({"x": array}, COLUMNAR).decode()
    assert text == '{"outputs": [NaN, Infinity, -Infinity]}'


def test_several_outputs():
    outputs = {"a": np.array([[1], [2]]), "b": np.array([True, False])}
    rows = json.loads(json_tensor.to_json(outputs, ROW))
    assert rows == {
        "predictions": [{"a": [1], "b": True}, {"a": [2], "b": False}]
    }
    columns = json.loads(json_tensor.to_json(outputs, COLUMNAR))
    assert columns == {"outputs": {"a": [[1], [2]], "b": [True, False]}}


def test_strings_and_bytes():
    array = np.array(["é".encode(), b"\xff"], object)
    outputs = {"text": array[:1], "raw_bytes": array[1:]}
    assert json.loads(json_tensor.to_json(outputs, ROW)) == {
        "predictions": [{"text": "é", "raw_bytes": {"b64": "/w=="}}]
    }


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"x": np.array(1.0)}, "Tensor name: x has no shape information"),
        ({"x": np.zeros([0, 3])}, "x has invalid batch size: 0"),
        (
            {"x": np.zeros([2]), "y": np.zeros([3])},
            "Tensor name: y has inconsistent batch size: 3 expecting: 2",
        ),
    ],
)
def test_rows_need_a_batch(outputs, message):
    with pytest.raises(session.StatusError, match=message):
        json_tensor.to_json(outputs, ROW)
