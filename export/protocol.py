"""What gRPC and REST to a model server share: inputs, errors, checked answers.

`export.grpc_transport` and `export.rest_transport` are the protocols.
"""

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
MOST_BYTES = 2**31 - 1  # of an answer: gRPC's limit for a message


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
    """Returns inputs as arrays that TensorFlow has a type for.

    Strings, as arrays of `str` or of dtype object that hold `str` or `bytes`,
    become arrays of dtype object that hold `bytes`.
    """
    tensors = {}
    for name, value in inputs.items():
        place = f"inputs[{name!r}]"
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"`{place}` must be an array: {error}") from error
        if array.dtype.kind in "OSU":
            array = to_utf8(array.astype(object), place)
        try:
            messages.data_type(array)
        except ValueError as error:
            raise ValueError(f"`{place}` cannot be sent: {error}") from error
        tensors[name] = array
    return tensors


def to_utf8(texts: np.ndarray, name: str) -> np.ndarray:
    """Encodes the strings of an array of dtype object; errors name `name`."""
    encoded = np.empty_like(texts)
    for index, text in np.ndenumerate(texts):
        place = f"{name}{''.join(f'[{i}]' for i in index)}"
        if not isinstance(text, (str, bytes)):
            raise ValueError(
                f"`{place}` must be a str, received {text!r} of type "
                f"{type(text).__name__}."
            )
        try:
            encoded[index] = text if isinstance(text, bytes) else text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"`{place}` must be text that UTF-8 can encode; its character "
                f"{error.start} is {text[error.start]!r}, half of a surrogate "
                "pair."
            ) from error
    return encoded


def split(inputs: Arrays, batch_size: int | None) -> list[Arrays]:
    """Divides inputs into those of requests of at most `batch_size` rows."""
    if batch_size is None:
        return [inputs]
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be positive, not {batch_size}.")
    counts = {array.shape[:1] for array in inputs.values()}
    if len(counts) != 1 or () in counts:
        shapes = {name: array.shape for name, array in inputs.items()}
        raise ValueError(
            "`inputs` must have as many rows each to be sent in batches, "
            f"received shapes {shapes}."
        )
    ((count,),) = counts
    return [
        {
            name: array[start : start + batch_size]
            for name, array in inputs.items()
        }
        for start in range(0, max(count, 1), batch_size)
    ]


def check_outputs(
    url: str, outputs: Arrays, definition: Message, inputs: Arrays
) -> Arrays:
    """Returns the outputs of a signature that a server answered for inputs.

    Dtypes and shapes must be those that `definition`, a `SignatureDef`,
    declares. Where the first dimension of every input and of an output is
    free, they must have as many rows.
    """
    rows = _rows(inputs, definition)
    for name, info in definition.outputs.items():
        if name not in outputs:
            raise unusable(
                url, f"without the output {name!r}: {sorted(outputs)}"
            )
        array = outputs[name]
        expected = messages.numpy_dtype(info.dtype)
        if array.dtype != expected:
            raise unusable(
                url, f"{name!r} as {array.dtype}, declared {expected}"
            )
        declared = [dim.size for dim in info.tensor_shape.dim]
        fits = array.ndim == len(declared) and all(
            size in (-1, received)
            for size, received in zip(declared, array.shape)
        )
        if not (fits or info.tensor_shape.unknown_rank):
            raise unusable(
                url, f"{name!r} of shape {array.shape}, declared {declared}"
            )
        if rows is not None and _has_rows(info) and len(array) != rows:
            raise unusable(
                url, f"{len(array)} rows of {name!r} for {rows} of the inputs"
            )
    return {name: outputs[name] for name in definition.outputs}


def _rows(inputs, definition):
    """Returns how many rows each input has; None if not all are batches."""
    counts = set()
    for name, array in inputs.items():
        info = definition.inputs.get(name)
        has_rows = array.ndim and info is not None and _has_rows(info)
        counts.add(len(array) if has_rows else None)
    return counts.pop() if len(counts) == 1 else None


def _has_rows(info):
    """Whether the first dimension is free, as that of a batch is."""
    dims = info.tensor_shape.dim
    return bool(dims) and dims[0].size == -1
