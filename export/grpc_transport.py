"""Asks a model server over gRPC, blocking or async.

`export.client` adds retries and batches.
"""

import contextlib
from typing import Any

import grpc
from google.protobuf.message import Message

from export import messages
from export.address import Address
from export.protocol import Arrays, ServerError, check_outputs, unusable

_OPTIONS = [
    # No limit: the default of 4 MiB is about 2,000 embeddings of size 512.
    ("grpc.max_receive_message_length", -1),
    # Its default waits up to two minutes for a server that restarts.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Ignore the environment's proxies, as over REST.
    ("grpc.enable_http_proxy", 0),
    # Where a name has several servers, ask them in turn.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
]


class Grpc:
    """A gRPC connection to a model: its newest version, or the one with a
    number or a label.

    A request is the name of a method and a message; an answer is a message.
    """

    _grpc = grpc

    def __init__(
        self,
        address: Address,
        model_name: str,
        version: int | None = None,
        label: str | None = None,
    ):
        self.url = address.url
        self._spec = messages.predict_pb2.PredictRequest().model_spec
        self._spec.name = model_name
        if version is not None:
            self._spec.version.value = version
        elif label is not None:
            self._spec.version_label = label
        self._metadata = tuple(address.headers.items())
        self._compression = grpc.Compression.Gzip if address.gzip else None
        where, tls = address.netloc, address.tls
        if tls is None:
            self._channel = self._grpc.insecure_channel(where, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(
                tls.roots, tls.key, tls.certificate
            )
            self._channel = self._grpc.secure_channel(
                where, credentials, _OPTIONS
            )
        services = messages.prediction_service_pb2_grpc
        self._stub = services.PredictionServiceStub(self._channel)

    def predict_request(
        self, inputs: Arrays, signature: str
    ) -> tuple[str, Message]:
        """Returns the request to run a signature."""
        request = messages.predict_pb2.PredictRequest(model_spec=self._spec)
        request.model_spec.signature_name = signature
        for key, array in inputs.items():
            request.inputs[key].CopyFrom(messages.to_tensor_proto(array))
        return "Predict", request

    def metadata_request(self) -> tuple[str, Message]:
        """Returns the request for the model's signatures."""
        request = messages.get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._spec, metadata_field=["signature_def"]
        )
        return "GetModelMetadata", request

    def read_prediction(
        self, answer: Message, definition: Message, inputs: Arrays
    ) -> Arrays:
        """Returns the outputs in an answer, which fit the `SignatureDef`."""
        try:
            outputs = messages.from_tensor_protos(answer.outputs)
        except ValueError as error:
            raise unusable(self.url, f"a broken array: {error}") from error
        return check_outputs(self.url, outputs, definition, inputs)

    def read_metadata(self, answer: Message) -> tuple[int, dict[str, Message]]:
        """Returns the version that answered, and `{name: SignatureDef}`."""
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        if not answer.metadata["signature_def"].Unpack(signatures):
            raise unusable(self.url, "without the signatures of a model")
        return answer.model_spec.version.value, dict(signatures.signature_def)

    def send(self, request: tuple[str, Message], seconds: float) -> Message:
        """Sends a request once; returns the answer."""
        with self._errors():
            return self._call(request, seconds)

    def close(self) -> Any:
        return self._channel.close()

    def _call(self, request, seconds):
        method, message = request
        return getattr(self._stub, method)(
            message,
            timeout=seconds,
            metadata=self._metadata,
            compression=self._compression,
        )

    @contextlib.contextmanager
    def _errors(self):
        try:
            yield
        except grpc.RpcError as error:
            raise ServerError(
                f"{self.url} answered {error.code().name}: {error.details()}",
                error.code().name,
            ) from error


class AsyncGrpc(Grpc):
    """`Grpc` for the event loop in which it is made."""

    _grpc = grpc.aio

    async def send(self, request: tuple[str, Message], seconds: float) -> Any:
        with self._errors():
            return await self._call(request, seconds)
