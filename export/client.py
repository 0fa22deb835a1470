"""A client of TensorFlow Serving, NumPy in and NumPy out, gRPC or REST.

Shape letters: N texts, D embedding size.
"""

import abc
import base64
import time
import urllib.parse

import grpc
import numpy as np
import requests
from google.protobuf import json_format

from export import messages
from export.session import DEFAULT_SIGNATURE

_AVAILABLE = messages.get_model_status_pb2.ModelVersionStatus.AVAILABLE
# gRPC's default of 4 MiB is about 2,000 embeddings of size 512.
_OPTIONS = [("grpc.max_receive_message_length", -1)]


class ServerError(OSError):
    """What a server answered instead of a result, or that it is not there."""


class Client(abc.ABC):
    """A connection to one model of a server.

    Args:
        address: the server's address without its scheme, `host:port`.
        model_name: the model's name on the server.
        timeout: float, the deadline of a request in seconds.

    Attributes:
        requests: the number of predict requests that were answered.

    A client is a context manager, which closes the connection.
    """

    def __init__(self, address, model_name, timeout):
        self.model_name = model_name
        self.requests = 0
        self._address, self._timeout = address, timeout
        self._signatures = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def predict(self, inputs, signature=DEFAULT_SIGNATURE):
        """Asks for one answer.

        Args:
            inputs: `{name: array}`; strings as arrays of `str`, or of dtype
                object that hold `bytes`.
            signature: name of the signature.

        Returns:
            `{name: array}`.

        Raises:
            ValueError: if the server has no such signature.
            ServerError: if the server refuses, is away, or takes too long.
        """
        if signature not in self.signatures():
            raise ValueError(
                f"`signature` {signature!r} is not served; there are "
                f"{', '.join(sorted(self.signatures()))}."
            )
        answer = self._predict(
            {name: _as_tensor(array) for name, array in inputs.items()},
            signature,
        )
        self.requests += 1
        return answer

    def signatures(self):
        """Returns the model's signatures, `{name: SignatureDef}`."""
        if self._signatures is None:
            self._signatures = self._read_signatures()
        return self._signatures

    def version(self):
        """Returns the number of the newest version that is available.

        Raises:
            ServerError: if there is none.
        """
        numbers = [
            status.version
            for status in self._read_status().model_version_status
            if status.state == _AVAILABLE
        ]
        if not numbers:
            raise ServerError(f"No version of {self.model_name} is available.")
        return max(numbers)

    def wait_until_ready(self, seconds, still_starting=lambda: True):
        """Waits for a version to become available.

        Args:
            seconds: float, how long to wait.
            still_starting: function without arguments; the wait is given up
                when it returns False.

        Raises:
            ServerError: if none does.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.version()
                return
            except ServerError:
                if not still_starting() or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def embed(self, texts, kind=None, batch_size=64, on_batch=None):
        """Embeds texts, in batches of like length.

        Args:
            texts: list of N `str`.
            kind: name of a prompt, such as "query" or "document"; its
                signature is asked if the model has it, else the default one.
            batch_size: int, texts per request.
            on_batch: function called with the number of texts of each batch
                that is done.

        Returns:
            float32 array `[N, D]`, in the order of `texts`.

        Raises:
            ServerError: as `predict`.
        """
        signature = kind if kind in self.signatures() else DEFAULT_SIGNATURE
        # A batch costs what its longest text costs.
        order = np.argsort([len(text) for text in texts], kind="stable")
        parts = []
        for start in range(0, len(texts), batch_size):
            batch = [texts[i] for i in order[start : start + batch_size]]
            answer = self.predict({"text": np.array(batch)}, signature)
            parts.append(answer["embedding"])
            if on_batch:
                on_batch(len(batch))
        if not parts:
            raise ValueError("`texts` is empty; pass at least one text.")
        embeddings = np.concatenate(parts)
        in_order = np.empty_like(embeddings)
        in_order[order] = embeddings
        return in_order

    @abc.abstractmethod
    def close(self):
        """Closes the connection."""

    @abc.abstractmethod
    def _predict(self, inputs, signature): ...

    @abc.abstractmethod
    def _read_signatures(self): ...

    @abc.abstractmethod
    def _read_status(self): ...


def _as_tensor(array):
    """Turns `str` into UTF-8 `bytes`; other arrays stay as they are."""
    array = np.asarray(array)
    if array.dtype.kind != "U":
        return array
    encoded = [text.encode() for text in array.ravel()]
    return np.array(encoded, object).reshape(array.shape)


class GrpcClient(Client):
    """A `Client` over gRPC."""

    def __init__(self, address, model_name, timeout=60.0):
        super().__init__(address, model_name, timeout)
        self._channel = grpc.insecure_channel(address, _OPTIONS)
        self._predictions = (
            messages.prediction_service_pb2_grpc.PredictionServiceStub(
                self._channel
            )
        )
        self._models = messages.model_service_pb2_grpc.ModelServiceStub(
            self._channel
        )

    def close(self):
        self._channel.close()

    def _call(self, method, request):
        request.model_spec.name = self.model_name
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise ServerError(
                f"grpc://{self._address} answered {error.code().name}: "
                f"{error.details()}"
            ) from error

    def _predict(self, inputs, signature):
        request = messages.predict_pb2.PredictRequest()
        request.model_spec.signature_name = signature
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(messages.to_tensor_proto(array))
        response = self._call(self._predictions.Predict, request)
        return {
            name: messages.from_tensor_proto(proto)
            for name, proto in response.outputs.items()
        }

    def _read_signatures(self):
        request = messages.get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=["signature_def"]
        )
        response = self._call(self._predictions.GetModelMetadata, request)
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return dict(signatures.signature_def)

    def _read_status(self):
        request = messages.get_model_status_pb2.GetModelStatusRequest()
        return self._call(self._models.GetModelStatus, request)


class RestClient(Client):
    """A `Client` over REST."""

    def __init__(self, address, model_name, timeout=60.0):
        super().__init__(address, model_name, timeout)
        self._session = requests.Session()
        self._url = f"http://{address}/v1/models/{model_name}"

    def close(self):
        self._session.close()

    def _call(self, path, document=None):
        url = self._url + path
        try:
            if document is None:
                response = self._session.get(url, timeout=self._timeout)
            else:
                response = self._session.post(
                    url, json=document, timeout=self._timeout
                )
            answer = response.json()
        except requests.RequestException as error:
            raise ServerError(f"{url} does not answer: {error}") from error
        if response.status_code != 200:
            raise ServerError(
                f"{url} answered {response.status_code}: "
                f"{answer.get('error', answer)}"
            )
        return answer

    def _predict(self, inputs, signature):
        document = {
            "signature_name": signature,
            "inputs": {name: _to_json(array) for name, array in inputs.items()},
        }
        outputs = self._call(":predict", document)["outputs"]
        definitions = self.signatures()[signature].outputs
        if len(definitions) == 1:
            outputs = {next(iter(definitions)): outputs}
        return {
            name: np.array(
                outputs[name], messages.numpy_dtype(definition.dtype)
            )
            for name, definition in definitions.items()
        }

    def _read_signatures(self):
        answer = self._call("/metadata")["metadata"]["signature_def"]
        signatures = json_format.ParseDict(
            answer, messages.get_model_metadata_pb2.SignatureDefMap()
        )
        return dict(signatures.signature_def)

    def _read_status(self):
        return json_format.ParseDict(
            self._call(""),
            messages.get_model_status_pb2.GetModelStatusResponse(),
        )


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


def connect(server, model_name, timeout=60.0):
    """Returns the client for a server's URL.

    Args:
        server: str, `grpc://host:port` or `http://host:port`.
        model_name: the model's name on the server.
        timeout: float, the deadline of a request in seconds.

    Raises:
        ValueError: if the URL is of another kind.
    """
    url = urllib.parse.urlsplit(server)
    clients = {"grpc": GrpcClient, "http": RestClient}
    if url.scheme not in clients or not url.netloc:
        raise ValueError(
            "`server` must be grpc://HOST:PORT or http://HOST:PORT, received "
            f"{server!r}."
        )
    return clients[url.scheme](url.netloc, model_name, timeout)
