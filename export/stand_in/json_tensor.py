"""TensorFlow Serving's JSON of requests and answers, to and from arrays.

After `util/json_tensor.cc`: `instances` and `predictions` (rows) or `inputs`
and `outputs` (columns), and `{"b64": ...}` for bytes. RapidJSON parses, as
there.
"""

import base64
import codecs
import json
import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import rapidjson
from google.protobuf.message import Message

from export import messages, session
from export.stand_in.core import invalid_argument

_MAX_ECHO = 256  # characters of a value in an error
# Smaller integers are read as this type and wrap around.
_INT32 = np.dtype(np.int32)
# What JSON does not carry, in requests and answers.
_NOT_IN_JSON = {*map(np.dtype, (np.float16, np.uint16, ml_dtypes.bfloat16))}


class _Object(tuple):
    """A JSON object: pairs of names and values. Of equal names the first
    counts."""

    def to_dict(self):
        return dict(reversed(self))


class _Parsed(Exception):
    """Ends a parse where the document ends; holds the document."""


class _Decoder(rapidjson.Decoder):
    """Raises `_Parsed` after an object that is not part of another."""

    _depth = 0

    def start_object(self):
        self._depth += 1
        return []

    def end_object(self, members):
        self._depth -= 1
        if not self._depth:
            raise _Parsed(_Object(members))
        return _Object(members)


def parse(body: bytes) -> dict[str, object]:
    """Parses a request body; what follows the object is ignored."""
    body = body.removeprefix(codecs.BOM_UTF8).lstrip(b" \t\r\n")
    try:
        if body.startswith(b"{"):
            _Decoder(number_mode=rapidjson.NM_NAN)(body)
        value = rapidjson.loads(body, number_mode=rapidjson.NM_NAN)
    except _Parsed as parsed:
        return parsed.args[0].to_dict()
    except (RecursionError, ValueError) as error:
        text = str(error).rpartition(": ")[2]
        raise invalid_argument(f"JSON Parse error: {text}") from error
    raise _wrong(value, "Is not object")


def _wrong(value, problem):
    return invalid_argument(f"JSON Value: {_echo(value)} {problem}")


def _echo(value):
    try:
        text = rapidjson.dumps(
            value,
            default=_Object.to_dict,
            number_mode=rapidjson.NM_NAN,
            write_mode=rapidjson.WM_PRETTY | rapidjson.WM_SINGLE_LINE_ARRAY,
            iterable_mode=rapidjson.IM_ONLY_LISTS,
            ensure_ascii=False,
        )
    except RecursionError:
        text = "..."
    return text[:_MAX_ECHO]


def signature_name(document: Mapping[str, object]) -> str:
    """Returns the signature of a request, empty for the default one."""
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise _wrong(
            document,
            "not formatted correctly. 'signature_name' key must be a string "
            "value.",
        )
    return name


def _is_base64(value):
    return (
        isinstance(value, _Object)
        and [name for name, _ in value] == ["b64"]
        and isinstance(value[0][1], str)
    )


def _is_object(value):
    return isinstance(value, _Object) and not _is_base64(value)


def _decode_base64(value):
    if not _is_base64(value):
        raise _wrong(value, "not formatted correctly for base64 data")
    text = "".join(value[0][1].split())
    try:
        # The model server needs no padding and ignores white space.
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        raise invalid_argument("Unable to base64 decode") from error


def _leaf(value, dtype):
    """Converts one JSON value to an element of a tensor."""
    if dtype in _NOT_IN_JSON:
        raise session.StatusError(
            messages.error_codes_pb2.UNIMPLEMENTED,
            f"Conversion of JSON Value: {_echo(value)} to type: {_name(dtype)}",
        )
    kind, is_bool = dtype.kind, isinstance(value, bool)
    if kind == "O" and isinstance(value, _Object):
        return _decode_base64(value)
    if kind == "O" and isinstance(value, str):
        return value.encode()
    if kind == "b" and is_bool:
        return value
    if kind in "iu" and isinstance(value, int) and not is_bool:
        limits = np.iinfo(dtype if dtype.itemsize > 2 else _INT32)
        if limits.min <= value <= limits.max:
            return value
    if kind == "f" and isinstance(value, (int, float)) and not is_bool:
        try:
            return float(value)
        except OverflowError as error:
            raise invalid_argument(
                "JSON Parse error: Number too big to be stored in double."
            ) from error
    names = {type(None): "Null", bool: str(value), str: "String"}
    names |= {list: "Array", _Object: "Object"}
    found = names.get(type(value), "Number")
    expected = _name(dtype)
    raise _wrong(value, f"Type: {found} is not of expected type: {expected}")


def _name(dtype):
    """Returns the model server's name of a type, such as `float`."""
    number = messages.data_type(np.empty(0, dtype))
    return messages.types_pb2.DataType.Name(number)[len("DT_") :].lower()


def _shape(value):
    """Returns the shape of nested lists, by their first elements."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    if len(shape) > messages.MAX_RANK:
        raise _unexpected_level(len(shape), messages.MAX_RANK)
    return shape


def _unexpected_level(level, rank):
    return invalid_argument(
        f"Encountered list at unexpected level: {level} expected < {rank}"
    )


def _leaves(value, shape, dtype, level=0):
    """Yields the elements of nested lists, which must all fit the shape."""
    if not isinstance(value, list):
        if level != len(shape):
            raise _wrong(
                value,
                f"found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}",
            )
        yield _leaf(value, dtype)
        return
    if level >= len(shape):
        raise _unexpected_level(level, len(shape))
    if len(value) != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {len(value)} at level: "
            f"{level} expected size: {shape[level]}"
        )
    for item in value:
        yield from _leaves(item, shape, dtype, level + 1)


def _to_array(leaves, shape, dtype):
    """Makes an array of the shape from the first elements."""
    read_as = np.dtype(np.float64) if dtype.kind == "f" else dtype
    if dtype.kind in "iu" and dtype.itemsize < 4:
        read_as = _INT32
    with np.errstate(over="ignore"):  # infinite, as in C++
        array = np.array(leaves, read_as).astype(dtype)
    return array[: math.prod(shape)].reshape(shape)


def _rows(instances, dtypes):
    """Stacks `instances` into one array per input."""
    if not isinstance(instances[0], _Object) and len(dtypes) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as "
            "multiple input tensors required as per tensorinfo_map"
        )
    named = _is_object(instances[0])
    shapes, leaves = {}, {name: [] for name in dtypes}
    for index, item in enumerate(instances):
        if named != _is_object(item):
            wanted = "object but got list"
            if not named:
                wanted = "value/list but got object"
            raise invalid_argument(
                f"Expecting {wanted} at item {index} of input list"
            )
        # A repeated name adds its values twice.
        members = item if named else [(next(iter(dtypes)), item)]
        for name, value in members:
            try:
                _add_row(shapes, leaves, name, value, dtypes)
            except session.StatusError as error:
                key = f" key: {name}" if named else ""
                raise invalid_argument(
                    f"Failed to process element: {index}{key} of 'instances' "
                    f"list. Error: {error}"
                ) from error
        if {name for name, _ in members} != dtypes.keys():
            raise invalid_argument(
                f"Failed to process element: {index} of 'instances' list. "
                f"JSON object: {_echo(item)} keys must be equal to: "
                f"{','.join(sorted(dtypes))}"
            )
    return {
        name: _to_array(leaves[name], [len(instances), *shapes[name]], dtype)
        for name, dtype in dtypes.items()
    }


def _add_row(shapes, leaves, name, value, dtypes):
    if name not in dtypes:
        raise invalid_argument(
            f"JSON object: does not have named input: {name}"
        )
    shape = _shape(value)
    leaves[name].extend(_leaves(value, shape, dtypes[name]))
    first = shapes.setdefault(name, shape)
    size, expected = math.prod(shape), math.prod(first)
    if size != expected:
        raise invalid_argument(
            f"Expecting tensor size: {expected} but got: {size}"
        )
    if shape != first:
        first, shape = (f"[{','.join(map(str, s))}]" for s in (first, shape))
        raise invalid_argument(f"Expecting shape {first} but got: {shape}")


def _columns(inputs, dtypes):
    """Converts `inputs` into one array per input."""
    if _is_object(inputs):
        inputs = inputs.to_dict()
    elif len(dtypes) > 1:
        raise invalid_argument(
            "inputs is a plain value/list, but expecting an object as "
            "multiple input tensors required as per tensorinfo_map"
        )
    else:
        inputs = dict.fromkeys(dtypes, inputs)
    arrays = {}
    for name, dtype in dtypes.items():
        if name not in inputs:
            raise invalid_argument(
                f"Missing named input: {name} in 'inputs' object."
            )
        shape = _shape(inputs[name])
        leaves = list(_leaves(inputs[name], shape, dtype))
        arrays[name] = _to_array(leaves, shape, dtype)
    return arrays


def to_arrays(
    document: Mapping[str, object], tensor_infos: Mapping[str, Message]
) -> tuple[dict[str, np.ndarray], bool]:
    """Converts a request to an array per input of the signature.

    Also returns whether the request, and so the answer, is in rows.
    """
    if not tensor_infos:
        raise invalid_argument(
            "Failed to get input map for signature: "
            f"{signature_name(document) or 'DEFAULT'}"
        )
    dtypes = {
        name: messages.numpy_dtype(info.dtype)
        for name, info in tensor_infos.items()
    }
    if "instances" in document and "inputs" in document:
        raise _wrong(
            document,
            "Not formatted correctly expecting only one of 'inputs' or "
            "'instances' keys to exist ",
        )
    if "inputs" in document:
        return _columns(document["inputs"], dtypes), False
    if "instances" not in document:
        raise invalid_argument("Missing 'inputs' or 'instances' key")
    instances = document["instances"]
    if not isinstance(instances, list):
        raise _wrong(document, "Expecting 'instances' to be an list/array")
    if not instances:
        raise _wrong(document, "No values in 'instances' array")
    return _rows(instances, dtypes), True


def _to_lists(name, array):
    if array.dtype in _NOT_IN_JSON:
        raise invalid_argument(
            f"Failed to write JSON value for tensor type: {_name(array.dtype)}"
        )
    if array.dtype.kind == "O":
        texts = array.copy()
        for index, item in np.ndenumerate(array):
            if name.endswith("_bytes"):
                texts[index] = {"b64": base64.b64encode(item).decode()}
            else:
                texts[index] = item.decode(errors="surrogateescape")
        return texts.tolist()
    if array.dtype == np.float32:
        # Six digits, or nine if six do not tell a number apart.
        numbers = array.ravel().tolist()
        short, long = (
            np.reshape([float(f"{x:.{n}g}") for x in numbers], array.shape)
            for n in (6, 9)
        )
        array = np.where(short.astype(np.float32) == array, short, long)
    return array.tolist()


def to_json(outputs: Mapping[str, np.ndarray], in_rows: bool) -> bytes:
    """Writes the answer to a request."""
    lists = {name: _to_lists(name, array) for name, array in outputs.items()}
    if in_rows:
        _check_batch(outputs)
    answer: object = lists
    if len(lists) == 1:
        (answer,) = lists.values()
    elif in_rows:
        answer = [dict(zip(lists, row)) for row in zip(*lists.values())]
    key = "predictions" if in_rows else "outputs"
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
