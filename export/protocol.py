"""What a client sends to a model server and reads in its answers: the checks
that both protocols share, and gRPC's messages.

Nothing here connects: `export.transport` does. `export.rest_protocol` is the
other protocol.
"""

import numpy as np
from google.protobuf.message import DecodeError

from export import messages

# What a later attempt may change: a server that starts, restarts or has its
# queue or its threads full. Asking twice does no harm: a model has no state.
_TEMPORARY = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
# In the texts of both protocols' libraries: what asking again cannot change.
_LASTING = ("CERTIFICATE_VERIFY_FAILED", "message larger than max")
MOST_BYTES = 2**31 - 1  # of an answer: what a message of gRPC may have


class ServerError(OSError):
    """What a server answered instead of a result, or that it is not there.

    Attributes:
        code: str, the name of a gRPC status, over REST too.
        temporary: bool, whether a later attempt may succeed.
    """

    def __init__(self, message, code="UNAVAILABLE", temporary=None):
        super().__init__(message)
        self.code = code
        if temporary is None:
            temporary = code in _TEMPORARY
        self.temporary = temporary and not any(
            text in message for text in _LASTING
        )


def unusable(url, what):
    """Returns the error for an answer that is no result of the model."""
    return ServerError(f"{url} answered {what}", "INTERNAL")


def to_tensors(inputs):
    """Returns inputs as arrays that TensorFlow has a type for.

    Args:
        inputs: `{name: array}`; strings as arrays of `str`, or of dtype
            object that hold `str` or `bytes`.

    Returns:
        `{name: array}`; strings are of dtype object and hold `bytes`.

    Raises:
        ValueError: if a value is not an array, or holds something else.
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


def to_utf8(texts, name):
    """Encodes the strings of an array of dtype object.

    Raises:
        ValueError: if one is no string, or has no UTF-8; `name` says of what.
    """
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


def split(inputs, batch_size):
    """Returns the inputs of each request, `{name: array}`.

    Args:
        inputs: `{name: array}`.
        batch_size: int, the most rows of a request; None for one request.

    Raises:
        ValueError: if the inputs cannot be split.
    """
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


def check_outputs(url, outputs, definition, inputs):
    """Checks an answer against the signature and the request.

    Args:
        url: str, of the server.
        outputs: `{name: array}`.
        definition: the `SignatureDef`.
        inputs: `{name: array}`, what was sent.

    Returns:
        `{name: array}`, of the signature's outputs.

    Raises:
        ServerError: if an output is missing, or has another dtype, shape or,
            where the first dimension is free in every input and in it,
            another number of rows than the inputs.
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
        if not info.tensor_shape.unknown_rank and (
            array.ndim != len(declared)
            or any(
                size not in (-1, received)
                for size, received in zip(declared, array.shape)
            )
        ):
            raise unusable(
                url,
                f"{name!r} of shape {array.shape}, declared {declared}",
            )
        if rows is not None and _has_rows(info) and len(array) != rows:
            raise unusable(
                url, f"{len(array)} rows of {name!r} for {rows} of the inputs"
            )
    return {name: outputs[name] for name in definition.outputs}


def _rows(inputs, definition):
    """Returns how many rows each input has; None if not all are batches."""
    counts = {
        len(array)
        if array.ndim
        and name in definition.inputs
        and _has_rows(definition.inputs[name])
        else None
        for name, array in inputs.items()
    }
    return counts.pop() if len(counts) == 1 else None


def _has_rows(info):
    """Whether the first dimension is free, as that of a batch is."""
    dims = info.tensor_shape.dim
    return bool(dims) and dims[0].size == -1


class Grpc:
    """The messages of gRPC.

    A request is the name of a method and a message; an answer is a message.

    Args:
        address: the server's `Address`.
        model_name: the model's name on the server.
        version: int, the version to ask; the newest by default.
        label: str, the label of the version to ask, instead of its number.
    """

    def __init__(self, address, model_name, version=None, label=None):
        self.url = address.url
        self._spec = messages.predict_pb2.PredictRequest().model_spec
        self._spec.name = model_name
        if version is not None:
            self._spec.version.value = version
        elif label is not None:
            self._spec.version_label = label

    def predict(self, inputs, name):
        """Returns a request.

        Args:
            inputs: `{input: array}`; strings are of dtype object, `bytes`.
            name: name of the signature.

        Raises:
            ValueError: if a value cannot be sent.
        """
        request = messages.predict_pb2.PredictRequest(model_spec=self._spec)
        request.model_spec.signature_name = name
        for key, array in inputs.items():
            request.inputs[key].CopyFrom(messages.to_tensor_proto(array))
        return "Predict", request

    def metadata(self):
        """Returns the request of `read_metadata`."""
        return "GetModelMetadata", (
            messages.get_model_metadata_pb2.GetModelMetadataRequest(
                model_spec=self._spec, metadata_field=["signature_def"]
            )
        )

    def read_prediction(self, answer, definition, inputs):
        """Returns `{output: array}` of an answer to `predict`.

        Args:
            answer: what came back.
            definition: the `SignatureDef`.
            inputs: `{input: array}`, what was sent.

        Raises:
            ServerError: if the answer does not fit the two.
        """
        try:
            outputs = {
                key: messages.from_tensor_proto(proto)
                for key, proto in answer.outputs.items()
            }
        except ValueError as error:
            raise unusable(self.url, f"a broken array: {error}") from error
        return check_outputs(self.url, outputs, definition, inputs)

    def read_metadata(self, answer):
        """Returns the version that answered, and `{name: SignatureDef}`.

        Raises:
            ServerError: if the answer has no signatures.
        """
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        try:
            found = answer.metadata["signature_def"].Unpack(signatures)
        except DecodeError:
            found = False
        if not found:
            raise unusable(self.url, "without the signatures of a model")
        return answer.model_spec.version.value, dict(signatures.signature_def)
