"""TensorFlow Serving's JSON of answers, and the types that JSON carries.

After `util/json_tensor.cc`: `predictions` (rows) or `outputs` (columns), and
`{"b64": ...}` for bytes.
"""

import base64
import json
from collections.abc import Mapping

import numpy as np

from export.stand_in.errors import invalid_argument

ROW, COLUMNAR = "row", "columnar"
# The model server's names of types, where they differ from NumPy's.
_TYPE_NAMES = {
    "object": "string",
    "float16": "half",
    "float32": "float",
    "float64": "double",
}
# The types that JSON carries, in requests and answers.
DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("object", "bool", "float32", "float64"),
        *("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"),
    )
)


def dtype_name(dtype: np.dtype) -> str:
    """Returns the model server's name of a dtype."""
    return _TYPE_NAMES.get(dtype.name, dtype.name)


def _to_lists(name, array):
    if array.dtype not in DTYPES:
        raise invalid_argument(
            "Failed to write JSON value for tensor type: "
            f"{dtype_name(array.dtype)}"
        )
    if array.dtype.kind == "O":
        if name.endswith("_bytes"):
            texts = [
                {"b64": base64.b64encode(item).decode()}
                for item in array.ravel()
            ]
        else:
            texts = [
                item.decode(errors="surrogateescape") for item in array.ravel()
            ]
        return np.array(texts, object).reshape(array.shape).tolist()
    if array.dtype == np.float32:
        array = _decimals(array)
    return array.tolist()


def _decimals(array):
    """Rounds float32 to six digits, or nine if six do not tell it apart."""
    digits = [
        np.array([float(f"{x:.{count}g}") for x in array.ravel().tolist()])
        for count in (6, 9)
    ]
    short, long = (rounded.reshape(array.shape) for rounded in digits)
    with np.errstate(over="ignore"):
        return np.where(short.astype(np.float32) == array, short, long)


def to_json(outputs: Mapping[str, np.ndarray], answer_format: str) -> bytes:
    """Writes the answer to a request, in the format `ROW` or `COLUMNAR`."""
    lists = {name: _to_lists(name, array) for name, array in outputs.items()}
    if answer_format == COLUMNAR:
        key, answer = "outputs", lists
        if len(lists) == 1:
            (answer,) = lists.values()
    else:
        _check_batch(outputs)
        key, (answer, *others) = "predictions", lists.values()
        if others:
            answer = [dict(zip(lists, row)) for row in zip(*lists.values())]
    text = json.dumps({key: answer}, ensure_ascii=False)
    return text.encode(errors="surrogateescape")


def _check_batch(outputs):
    batch_size = None
    for name, array in outputs.items():
        if not array.ndim:
            raise invalid_argument(
                f"Tensor name: {name} has no shape information "
            )
        if batch_size not in (None, len(array)):
            raise invalid_argument(
                f"Tensor name: {name} has inconsistent batch size: "
                f"{len(array)} expecting: {batch_size}"
            )
        batch_size = len(array)
