"""TensorFlow's and TF Serving's official messages, without TensorFlow itself.

The message modules live inside the `tensorflow` package, whose import takes
seconds. They are imported here under an empty module of that name, which is
removed again, so that a later `import tensorflow` in the same process works and
finds the same message classes.
"""

# ruff: noqa: F401 - other modules use the messages that this one imports

import importlib.util
import itertools
import pathlib
import sys
import types
from collections.abc import Mapping

import ml_dtypes
import numpy as np


def package_folder(name: str) -> pathlib.Path:
    """Returns the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named '{name}'.")
    return pathlib.Path(spec.submodule_search_locations[0])


def stub_package(name: str) -> bool:
    """Lets modules of a package be imported without running its `__init__`;
    returns False if that has run already."""
    if name in sys.modules:
        return False
    package = types.ModuleType(name)
    package.__path__ = [str(package_folder(name))]
    sys.modules[name] = package
    return True


_stubbed = stub_package("tensorflow")
try:
    from tensorflow.core.framework import op_def_pb2, tensor_pb2, types_pb2
    from tensorflow.core.protobuf import (
        config_pb2,
        error_codes_pb2,
        meta_graph_pb2,
        saved_model_pb2,
    )
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_log_pb2,
        prediction_service_pb2_grpc,
    )
    from tensorflow_serving.config import model_server_config_pb2
finally:
    if _stubbed:
        del sys.modules["tensorflow"]

_STRING = np.dtype(object)  # an array of `bytes`
# Statuses as HTTP's, `http_server.cc`; every other is 500.
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# DataType number: (NumPy dtype, field of a TensorProto's values).
_TYPES = {
    types_pb2.DT_FLOAT: (np.dtype(np.float32), "float_val"),
    types_pb2.DT_DOUBLE: (np.dtype(np.float64), "double_val"),
    types_pb2.DT_HALF: (np.dtype(np.float16), "half_val"),
    types_pb2.DT_BFLOAT16: (np.dtype(ml_dtypes.bfloat16), "half_val"),
    types_pb2.DT_INT8: (np.dtype(np.int8), "int_val"),
    types_pb2.DT_INT16: (np.dtype(np.int16), "int_val"),
    types_pb2.DT_INT32: (np.dtype(np.int32), "int_val"),
    types_pb2.DT_INT64: (np.dtype(np.int64), "int64_val"),
    types_pb2.DT_UINT8: (np.dtype(np.uint8), "int_val"),
    types_pb2.DT_UINT16: (np.dtype(np.uint16), "int_val"),
    types_pb2.DT_UINT32: (np.dtype(np.uint32), "uint32_val"),
    types_pb2.DT_UINT64: (np.dtype(np.uint64), "uint64_val"),
    types_pb2.DT_BOOL: (np.dtype(bool), "bool_val"),
    types_pb2.DT_STRING: (_STRING, "string_val"),
}
# What fields of several types store, before it wraps around.
_STORED = {"half_val": np.int32, "int_val": np.int32}
MAX_RANK = 64  # NumPy's; TensorFlow's is 254
_MAX_FILLED = 2**20  # a few bytes of message may ask for any shape
_NUMBERS = {dtype: number for number, (dtype, _) in _TYPES.items()}


def numpy_dtype(data_type: int) -> np.dtype:
    """Returns the NumPy dtype of a `DataType`; strings are `object`."""
    if data_type not in _TYPES:
        name = types_pb2.DataType.Name(data_type)
        raise ValueError(f"`data_type` {name} cannot be exchanged as an array.")
    return _TYPES[data_type][0]


def data_type(array: np.ndarray) -> int:
    """Returns the `DataType` number of a NumPy array."""
    if array.dtype not in _NUMBERS:
        raise ValueError(
            f"`array` of dtype {array.dtype} has no TensorFlow type; strings "
            "are arrays of dtype object that hold `bytes`."
        )
    return _NUMBERS[array.dtype]


def to_tensor_proto(array: np.ndarray) -> tensor_pb2.TensorProto:
    """Packs an array (strings: dtype object, of `bytes`) in a message, in the
    field of its type, as TF Serving does."""
    proto = tensor_pb2.TensorProto(dtype=data_type(array))
    proto.tensor_shape.SetInParent()  # a scalar has a shape too
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    field = _TYPES[proto.dtype][1]
    values = array.view(np.uint16) if field == "half_val" else array
    getattr(proto, field).extend(values.ravel().tolist())
    return proto


def from_tensor_proto(proto: tensor_pb2.TensorProto) -> np.ndarray:
    """Unpacks a `TensorProto` into an array, as `Tensor::FromProto` does.

    A short list repeats its last value; an empty one stands for zeros or empty
    strings (tensor.proto). Surplus values are ignored, and integers wrap
    around. Raises a `ValueError` if type, shape or values do not fit.
    """
    dtype = numpy_dtype(proto.dtype)
    shape = [dim.size for dim in proto.tensor_shape.dim]
    count = 1
    for size in shape[:MAX_RANK]:
        count *= size
        if size < 0 or count >= 2**63:
            raise ValueError("`proto` has no definite shape.")
    if len(shape) > MAX_RANK:
        raise ValueError(f"`proto` has {len(shape)} axes, over {MAX_RANK}.")
    content = proto.tensor_content
    if content and count:
        if dtype == _STRING:
            return np.array(_split(content, count), dtype).reshape(shape)
        if dtype.kind == "b" and content.strip(b"\0\1"):
            raise ValueError("`proto` holds bytes that are no booleans.")
        return np.frombuffer(content, dtype).reshape(shape)
    field = _TYPES[proto.dtype][1]
    values = getattr(proto, field)[:count]
    if len(values) < count and count > _MAX_FILLED:
        raise ValueError(
            f"`proto` of shape {shape} holds {len(values)} values; at most "
            f"{_MAX_FILLED} are filled up."
        )
    default = b"" if dtype == _STRING else 0
    stored = _STORED.get(field, dtype)
    array = np.full(count, values[-1] if values else default, stored)
    array[: len(values)] = values
    if field == "half_val":
        return array.astype(np.uint16).view(dtype).reshape(shape)
    return array.astype(dtype, copy=False).reshape(shape)


def from_tensor_protos(
    protos: Mapping[str, tensor_pb2.TensorProto],
) -> dict[str, np.ndarray]:
    """Unpacks the inputs of a request, or the outputs of an answer."""
    return {name: from_tensor_proto(proto) for name, proto in protos.items()}


def _split(content, count):
    """Splits what TensorFlow's `EncodeStringList` joins: sizes as varints, then
    the strings."""
    sizes, start = [], 0
    for _ in range(count):
        size = shift = 0
        for byte in content[start : start + 5]:
            size |= (byte & 127) << shift
            start, shift = start + 1, shift + 7
            if byte < 128:
                break
        else:
            raise ValueError("`proto` holds no list of strings.")
        sizes.append(size)
    if sum(sizes) != len(content) - start:
        raise ValueError("`proto` holds no list of strings.")
    ends = itertools.accumulate(sizes, initial=start)
    return [content[a:b] for a, b in itertools.pairwise(ends)]
