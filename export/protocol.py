"""What gRPC and REST share: inputs, errors and checked answers."""

from collections.abc import Mapping

import numpy as np
from google.protobuf.message import Message

from export import messages

Arrays = dict[str, np.ndarray]
# Errors of a server that starts, restarts or is overloaded, which pass. Sending
# a request twice does no harm: a model has no state.
_TEMPORARY = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
# Texts in errors of both protocols' libraries that do not pass.
_LASTING = ("CERTIFICATE_VERIFY_FAILED", "message larger than max")


class ServerError(OSError):
    """A server refused a request, is away or took too long.

    `code` is the name of a gRPC status, over REST too; `temporary` tells
    whether a later attempt may succeed.
    """

    def __init__(
        self,
        message: str,
        code: str = "UNAVAILABLE",
        temporary: bool | None = None,
    ):
        super().__init__(message)
        self.code = code
        if temporary is None:
            temporary = code in _TEMPORARY
        lasting = any(text in message for text in _LASTING)
        self.temporary = temporary and not lasting


def unusable(url: str, what: str) -> ServerError:
    """Returns the error for an answer that is not a result of the model."""
    return ServerError(f"{url} answered {what}", "INTERNAL")


def to_tensors(inputs: Mapping) -> Arrays:
    """Returns inputs as arrays that TensorFlow has a type for; strings become
    arrays of dtype object that hold `bytes`."""
    tensors = {}
    for name, value in inputs.items():
        place = f"inputs[{name!r}]"
        try:
            array = np.asarray(value)
            if array.dtype.kind in "SU":
                array = array.astype(object)
            messages.data_type(array)
        except ValueError as error:
            raise ValueError(f"`{place}` cannot be sent: {error}") from error
        is_text = array.dtype.kind == "O"
        tensors[name] = to_utf8(array, place) if is_text else array
    return tensors


def to_utf8(texts: np.ndarray, name: str) -> np.ndarray:
    """Encodes the strings of an array of dtype object; errors name `name`."""
    encoded = np.empty_like(texts)
    for index, text in np.ndenumerate(texts):
        try:
            is_bytes = isinstance(text, bytes)
            encoded[index] = text if is_bytes else str.encode(text)
        except (TypeError, UnicodeEncodeError) as error:
            place = name + "".join(f"[{i}]" for i in index)
            raise ValueError(
                f"`{place}` must be a str that UTF-8 can encode, received "
                f"{text!r:.200}."
            ) from error
    return encoded


def check_outputs(
    url: str, outputs: Arrays, definition: Message, inputs: Arrays
) -> Arrays:
    """Returns the outputs that a `SignatureDef` declares.

    Dtypes and shapes must be as declared. Where the first dimension of every
    input and of an output is free, they must have as many rows.
    """
    rows = -1
    counts = {len(array) for array in inputs.values() if array.ndim}
    if len(counts) == 1 and all(map(_has_rows, definition.inputs.values())):
        (rows,) = counts
    for name, info in definition.outputs.items():
        if name not in outputs:
            what = f"without the output {name!r}: {sorted(outputs)}"
            raise unusable(url, what)
        array = outputs[name]
        dtype = messages.numpy_dtype(info.dtype)
        sizes = [dim.size for dim in info.tensor_shape.dim]
        if _has_rows(info):
            sizes[0] = rows
        fits = array.ndim == len(sizes) and all(
            size in (-1, received) for size, received in zip(sizes, array.shape)
        )
        if array.dtype != dtype or not (fits or info.tensor_shape.unknown_rank):
            raise unusable(
                url,
                f"{name!r} as {array.dtype} of shape {array.shape}, expected "
                f"{dtype} of shape {sizes}",
            )
    return {name: outputs[name] for name in definition.outputs}


def _has_rows(info):
    """Whether the first dimension is free, as that of a batch is."""
    dims = info.tensor_shape.dim
    return bool(dims) and dims[0].size == -1
