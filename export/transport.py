"""One attempt of a request to a model server, over gRPC or REST.

`export.client` puts deadlines, retries and batches around it.
"""

import base64
import json
import time

import grpc
import numpy as np
import requests
import urllib3.exceptions
from google.protobuf import json_format

from export import messages

_OPTIONS = [
    # gRPC's default of 4 MiB is about 2,000 embeddings of size 512.
    ("grpc.max_receive_message_length", -1),
    # Its default waits up to two minutes for a server that restarts.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A name of several servers: ask them in turn.
    (
        "grpc.service_config",
        json.dumps({"loadBalancingConfig": [{"round_robin": {}}]}),
    ),
]
# As the model server maps them, `http_server.cc`; 400 is also
# FAILED_PRECONDITION and OUT_OF_RANGE.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_CHUNK_BYTES = 2**16


class ServerError(OSError):
    """What a server answered instead of a result, or that it is not there.

    Attributes:
        code: str, the name of a gRPC status, over REST too.
    """

    def __init__(self, message, code="UNAVAILABLE"):
        super().__init__(message)
        self.code = code


class Grpc:
    """Asks over gRPC.

    Args:
        address: the server's address without its scheme, `host:port`.
        model_name: the model's name on the server.
        version: int, the version to ask; the newest by default.
        label: str, the label of the version to ask, instead of its number.

    The methods raise `ServerError`.
    """

    def __init__(self, address, model_name, version=None, label=None):
        self._address = address
        self._spec = messages.predict_pb2.PredictRequest().model_spec
        self._spec.name = model_name
        if version is not None:
            self._spec.version.value = version
        elif label is not None:
            self._spec.version_label = label
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        self._predictions = (
            messages.prediction_service_pb2_grpc.PredictionServiceStub(
                self._channel
            )
        )

    def close(self):
        """Closes the connection."""
        self._channel.close()

    def _call(self, method, request, seconds):
        request.model_spec.MergeFrom(self._spec)
        try:
            return method(request, timeout=seconds)
        except grpc.RpcError as error:
            raise ServerError(
                f"grpc://{self._address} answered {error.code().name}: "
                f"{error.details()}",
                error.code().name,
            ) from error

    def predict(self, inputs, name, signature, seconds):
        """Answers a request.

        Args:
            inputs: `{input: array}`; strings are of dtype object, `bytes`.
            name: name of the signature.
            signature: its `SignatureDef`.
            seconds: float, the deadline.

        Returns:
            `{output: array}`.
        """
        request = messages.predict_pb2.PredictRequest()
        request.model_spec.signature_name = name
        for key, array in inputs.items():
            request.inputs[key].CopyFrom(messages.to_tensor_proto(array))
        response = self._call(self._predictions.Predict, request, seconds)
        return {
            key: messages.from_tensor_proto(proto)
            for key, proto in response.outputs.items()
        }

    def metadata(self, seconds):
        """Returns the version that answers, and `{name: SignatureDef}`."""
        request = messages.get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=["signature_def"]
        )
        response = self._call(
            self._predictions.GetModelMetadata, request, seconds
        )
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        version = response.model_spec.version.value
        return version, dict(signatures.signature_def)


class Rest:
    """Asks over REST; arguments and methods as those of `Grpc`."""

    def __init__(self, address, model_name, version=None, label=None):
        self._session = requests.Session()
        self._url = f"http://{address}/v1/models/{model_name}"
        if version is not None:
            self._url += f"/versions/{version}"
        elif label is not None:
            self._url += f"/labels/{label}"

    def close(self):
        self._session.close()

    def _call(self, path, seconds, body=None):
        url = self._url + path
        deadline = time.monotonic() + seconds
        try:
            with self._session.request(
                "GET" if body is None else "POST",
                url,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=seconds,
                stream=True,
            ) as response:
                content = _read(response.raw, deadline)
        except (
            TimeoutError,
            requests.Timeout,
            urllib3.exceptions.ReadTimeoutError,
        ) as error:
            raise ServerError(
                f"{url} took longer than {seconds:.1f} s",
                "DEADLINE_EXCEEDED",
            ) from error
        except (
            requests.ConnectionError,
            urllib3.exceptions.HTTPError,
        ) as error:
            raise ServerError(f"{url} does not answer: {error}") from error
        if response.status_code != 200:
            raise ServerError(
                f"{url} answered {response.status_code}: {_message(content)}",
                _CODES.get(response.status_code, "UNKNOWN"),
            )
        return json.loads(content)

    def predict(self, inputs, name, signature, seconds):
        document = {
            "signature_name": name,
            "inputs": {key: _to_json(array) for key, array in inputs.items()},
        }
        body = json.dumps(document, allow_nan=False).encode()
        outputs = self._call(":predict", seconds, body)["outputs"]
        if len(signature.outputs) == 1:
            outputs = {next(iter(signature.outputs)): outputs}
        return {
            key: _to_array(outputs[key], info)
            for key, info in signature.outputs.items()
        }

    def metadata(self, seconds):
        answer = self._call("/metadata", seconds)
        signatures = json_format.ParseDict(
            answer["metadata"]["signature_def"],
            messages.get_model_metadata_pb2.SignatureDefMap(),
        )
        version = int(answer["model_spec"]["version"])
        return version, dict(signatures.signature_def)


def _read(stream, deadline):
    """Reads an answer that may trickle in: timeouts are of single reads."""
    content = bytearray()
    while chunk := stream.read1(_CHUNK_BYTES, decode_content=True):
        content += chunk
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(content)


def _message(content):
    """Returns the error in an answer; a proxy's may be no JSON."""
    try:
        return json.loads(content)["error"]
    except (ValueError, TypeError, KeyError):
        return content.decode(errors="replace")


def _to_json(array):
    """Writes an array as nested lists; bytes that are no text as base64."""
    if array.dtype.kind != "O":
        return array.tolist()
    values = np.empty_like(array)
    for index, item in np.ndenumerate(array):
        try:
            values[index] = item.decode()
        except UnicodeDecodeError:
            values[index] = {"b64": base64.b64encode(item).decode()}
    return values.tolist()


def _to_array(values, info):
    """Reads nested lists as an array; strings as `bytes`, as over gRPC."""
    array = np.array(values, messages.numpy_dtype(info.dtype))
    if not array.size:  # lists of nothing do not say how long their items are
        return array.reshape([max(d.size, 0) for d in info.tensor_shape.dim])
    if array.dtype.kind == "O":
        for index, item in np.ndenumerate(array):
            if isinstance(item, dict):
                array[index] = base64.b64decode(item["b64"])
            else:
                array[index] = item.encode()
    return array
