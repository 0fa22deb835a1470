"""TensorFlow Serving's JSON of requests, into arrays.

After `util/json_tensor.cc`: `instances` (rows) or `inputs` (columns), and
`{"b64": ...}` for bytes.
"""

import base64
import json
import math

import numpy as np

from export import messages, session
from export.stand_in.errors import invalid_argument
from export.stand_in.json_response import COLUMNAR, DTYPES, ROW, dtype_name

_MAX_RANK = 64  # NumPy's
# What RapidJSON says where Python's `json` says something else.
_PARSE_ERRORS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": (
        "Missing a name for object member."
    ),
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Extra data": "The document root must not be followed by other values.",
    "Unterminated string starting at": (
        "Missing a closing quotation mark in string."
    ),
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid control character at": "Invalid encoding in string.",
}
_JSON_TYPES = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}


def _type_name(value):
    if isinstance(value, bool):
        return str(value)
    return _JSON_TYPES[type(value)]


def _dumps(value):
    return json.dumps(value, indent=4, ensure_ascii=False)


def _is_base64(value):
    return (
        isinstance(value, dict)
        and value.keys() == {"b64"}
        and isinstance(value["b64"], str)
    )


def parse(body):
    """Parses a request body; bytes that are no UTF-8 stay as they are.

    Raises:
        StatusError: if it is no JSON object.
    """
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    try:
        document = json.loads(body.decode(errors="surrogateescape"))
    except json.JSONDecodeError as error:
        text = _PARSE_ERRORS.get(error.msg, error.msg)
        raise invalid_argument(
            f"JSON Parse error: {text} at offset: {error.pos}"
        ) from error
    except (RecursionError, ValueError) as error:
        # Nested too deep, or a number of too many digits.
        raise invalid_argument(f"JSON Parse error: {error}") from error
    if not isinstance(document, dict):
        raise invalid_argument(f"JSON Value: {_dumps(document)} Is not object")
    return document


def signature_name(document):
    """Returns the signature a request names, empty for the default one.

    Raises:
        StatusError: if it is no string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {_dumps(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def _decode_base64(value):
    if not _is_base64(value):
        raise invalid_argument(
            f"JSON Value: {_dumps(value)} not formatted correctly for base64 "
            "data"
        )
    text = "".join(value["b64"].split())
    try:
        # The model server does without padding, and passes over white space.
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        raise invalid_argument("Unable to base64 decode") from error


def _encode(text):
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise invalid_argument(
            "JSON Parse error: The surrogate pair in string is invalid."
        ) from error


def _leaf(value, dtype):
    """Converts one JSON value to an element of a tensor."""
    if dtype not in DTYPES:
        raise session.StatusError(
            messages.error_codes_pb2.UNIMPLEMENTED,
            f"Conversion of JSON Value: {_dumps(value)} to type: "
            f"{dtype_name(dtype)}",
        )
    kind, is_bool = dtype.kind, isinstance(value, bool)
    if kind == "O" and isinstance(value, dict):
        return _decode_base64(value)
    if kind == "O" and isinstance(value, str):
        return _encode(value)
    if kind == "b" and is_bool:
        return value
    if kind in "iu" and isinstance(value, int) and not is_bool:
        limits = np.iinfo(dtype)
        if limits.min <= value <= limits.max:
            return value
    if kind == "f" and isinstance(value, (int, float)) and not is_bool:
        limits = np.finfo(dtype)
        if isinstance(value, int):
            largest = 2 ** (limits.nmant + 1) - 1
        else:
            largest = float(limits.max) if math.isfinite(value) else math.inf
        # `not` for the sake of NaN, which is no less and no greater.
        if not (value < -largest or value > largest):
            return value
        raise invalid_argument(
            f"Cannot convert JSON value: {value} to {dtype_name(dtype)} "
            "without loss of precision."
        )
    raise invalid_argument(
        f"JSON Value: {_dumps(value)} Type: {_type_name(value)} is not of "
        f"expected type: {dtype_name(dtype)}"
    )


def _shape(value):
    """Returns the shape that the first elements of nested lists have."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape


def _leaves(value, shape, dtype, level=0):
    """Yields the elements of nested lists, which must all fit the shape."""
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid_argument(
                f"JSON Value: {_dumps(value)} found at incorrect level: "
                f"{level + 1} in the JSON DOM. Expected at level: {len(shape)}"
            )
        yield _leaf(value, dtype)
        return
    if level >= len(shape):
        raise invalid_argument(
            f"Encountered list at unexpected level: {level} expected < "
            f"{len(shape)}"
        )
    if len(value) != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {len(value)} at level: "
            f"{level} expected size: {shape[level]}"
        )
    for item in value:
        yield from _leaves(item, shape, dtype, level + 1)


def _to_array(value, tensor_info):
    """Converts nested lists to an array of a signature's input type."""
    dtype = messages.numpy_dtype(tensor_info.dtype)
    shape = _shape(value)
    if len(shape) > _MAX_RANK:
        raise invalid_argument(
            f"Encountered list at unexpected level: {len(shape)} expected < "
            f"{_MAX_RANK}"
        )
    array = np.empty(int(np.prod(shape, dtype=np.int64)), dtype)
    for index, leaf in enumerate(_leaves(value, shape, dtype)):
        array[index] = leaf
    return array.reshape(shape)


def _brackets(shape):
    return f"[{','.join(map(str, shape))}]"


def _is_object(value):
    return isinstance(value, dict) and not _is_base64(value)


def _rows(instances, tensor_infos):
    """Stacks `instances`, one array per input name."""
    if not isinstance(instances[0], dict) and len(tensor_infos) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as "
            "multiple input tensors required as per tensorinfo_map"
        )
    named = _is_object(instances[0])
    rows = {name: [] for name in tensor_infos}
    for index, item in enumerate(instances):
        if named and not _is_object(item):
            raise invalid_argument(
                f"Expecting object but got list at item {index} of input list"
            )
        if not named and _is_object(item):
            raise invalid_argument(
                f"Expecting value/list but got object at item {index} of input "
                "list"
            )
        values = item if named else {next(iter(tensor_infos)): item}
        for name, value in values.items():
            try:
                _add_row(rows, name, value, tensor_infos)
            except session.StatusError as error:
                key = f" key: {name}" if named else ""
                raise invalid_argument(
                    f"Failed to process element: {index}{key} of 'instances' "
                    f"list. Error: {error}"
                ) from error
        if values.keys() != tensor_infos.keys():
            raise invalid_argument(
                f"Failed to process element: {index} of 'instances' list. "
                f"JSON object: {_dumps(item)} must only have keys: "
                f"{','.join(sorted(tensor_infos))}"
            )
    return {name: np.stack(arrays) for name, arrays in rows.items()}


def _add_row(rows, name, value, tensor_infos):
    if name not in tensor_infos:
        raise invalid_argument(
            f"JSON object: does not have named input: {name}"
        )
    array = _to_array(value, tensor_infos[name])
    if rows[name]:
        first = rows[name][0]
        if array.size != first.size:
            raise invalid_argument(
                f"Expecting tensor size: {first.size} but got: {array.size}"
            )
        if array.shape != first.shape:
            raise invalid_argument(
                f"Expecting shape {_brackets(first.shape)} but got: "
                f"{_brackets(array.shape)}"
            )
    rows[name].append(array)


def _columns(inputs, tensor_infos):
    """Converts `inputs`, one array per input name."""
    if not _is_object(inputs):
        if len(tensor_infos) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as "
                "multiple input tensors required as per tensorinfo_map"
            )
        ((name, info),) = tensor_infos.items()
        return {name: _to_array(inputs, info)}
    for name in tensor_infos:
        if name not in inputs:
            raise invalid_argument(
                f"Missing named input: {name} in 'inputs' object."
            )
    return {
        name: _to_array(inputs[name], info)
        for name, info in tensor_infos.items()
    }


def to_tensors(document, tensor_infos):
    """Converts a request to arrays.

    Args:
        document: the parsed request.
        tensor_infos: `{name: TensorInfo}`, the signature's inputs.

    Returns:
        `{name: array}` and the format of the answer, `ROW` or `COLUMNAR`.

    Raises:
        StatusError: if the request does not fit the signature.
    """
    if not tensor_infos:
        raise invalid_argument(
            "Failed to get input map for signature: "
            f"{signature_name(document) or 'DEFAULT'}"
        )
    if "instances" in document and "inputs" in document:
        raise invalid_argument(
            f"JSON Value: {_dumps(document)} Not formatted correctly expecting "
            "only one of 'inputs' or 'instances' keys to exist "
        )
    if "inputs" in document:
        return _columns(document["inputs"], tensor_infos), COLUMNAR
    if "instances" not in document:
        raise invalid_argument("Missing 'inputs' or 'instances' key")
    instances = document["instances"]
    # "Excepting" is the model server's spelling.
    if not isinstance(instances, list):
        raise invalid_argument(
            f"JSON Value: {_dumps(document)} Excepting 'instances' to be an "
            "list/array"
        )
    if not instances:
        raise invalid_argument(
            f"JSON Value: {_dumps(document)} No values in 'instances' array"
        )
    return _rows(instances, tensor_infos), ROW
