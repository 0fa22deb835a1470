"""Sends a request to a model server once: gRPC or REST, blocking or async.

`export.client` adds retries and batches; `export.protocol` and
`export.rest_protocol` define requests and answers.
"""

import asyncio
import contextlib
import json
import time

import grpc
import httpcore2
from google.protobuf.message import Message

from export import messages, protocol, rest_protocol
from export.address import Address
from export.protocol import MOST_BYTES, ServerError

_OPTIONS = [
    # gRPC's default of 4 MiB is about 2,000 embeddings of size 512.
    ("grpc.max_receive_message_length", MOST_BYTES),
    # Its default waits up to two minutes for a server that restarts.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Ignore the environment's proxies, as over REST.
    ("grpc.enable_http_proxy", 0),
    # Where a name has several servers, ask them in turn.
    (
        "grpc.service_config",
        json.dumps({"loadBalancingConfig": [{"round_robin": {}}]}),
    ),
]
# Shorter than the model server keeps idle HTTP connections: 50 s,
# HTTP_READ_TIMEOUT of libevent's `http-internal.h`.
_IDLE_SECONDS = 30
_WRITE_BYTES = 2**16


class Grpc:
    """A gRPC connection to a version of a model: by default the newest, else
    that with a number or a label.

    Attributes:
        protocol: makes requests and reads answers.
    """

    _grpc = grpc

    def __init__(
        self, address: Address, model_name: str, version=None, label=None
    ):
        self.protocol = protocol.Grpc(address, model_name, version, label)
        self._metadata = tuple(address.headers.items())
        self._compression = grpc.Compression.Gzip if address.gzip else None
        tls = address.tls
        if tls is None:
            self._channel = self._grpc.insecure_channel(
                address.netloc, _OPTIONS
            )
        else:
            credentials = grpc.ssl_channel_credentials(
                tls.roots, tls.key, tls.certificate
            )
            self._channel = self._grpc.secure_channel(
                address.netloc, credentials, _OPTIONS
            )
        self._stub = messages.prediction_service_pb2_grpc.PredictionServiceStub(
            self._channel
        )

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def send(self, request: tuple[str, Message], seconds: float) -> Message:
        """Sends a request that `protocol` made; returns what it reads."""
        with self._errors():
            return self._call(request, seconds)

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
                f"{self.protocol.url} answered {error.code().name}: "
                f"{error.details()}",
                error.code().name,
            ) from error


class AsyncGrpc(Grpc):
    """`Grpc` for the event loop in which it is made."""

    _grpc = grpc.aio

    async def close(self):
        await self._channel.close()

    async def send(self, request, seconds):
        with self._errors():
            return await self._call(request, seconds)


class Rest:
    """A REST connection, with the arguments and methods of `Grpc`."""

    def __init__(
        self, address: Address, model_name: str, version=None, label=None
    ):
        self.protocol = rest_protocol.Rest(address, model_name, version, label)
        self._address = address
        self._pool = self._new_pool(
            ssl_context=address.tls and address.tls.context,
            max_connections=None,  # one per request under way
            keepalive_expiry=_IDLE_SECONDS,
        )

    @staticmethod
    def _new_pool(**options):
        return httpcore2.ConnectionPool(
            network_backend=_UntilDeadline(), **options
        )

    def close(self):
        self._pool.close()

    def send(self, request, seconds):
        # `_UntilDeadline` takes a moment instead of seconds.
        deadline = time.monotonic() + seconds
        timeouts = dict.fromkeys(("connect", "read", "write"), deadline)
        content = bytearray()
        with (
            self._errors(seconds),
            self._call(request, {"timeout": timeouts}) as response,
        ):
            for chunk in response.iter_stream():
                self._append(content, chunk)
        return self.protocol.read_response(
            response.status, response.headers, content
        )

    def _call(self, request, extensions):
        path, body = request
        scheme, netloc = self._address.scheme, self._address.netloc
        origin = httpcore2.URL(f"{scheme}://{netloc}")
        return self._pool.stream(
            "GET" if body is None else "POST",
            # Parsing the whole URL would change the path.
            httpcore2.URL(
                scheme=origin.scheme,
                host=origin.host,
                port=origin.port,
                target=path,
            ),
            headers=self.protocol.headers(body),
            content=body,
            extensions=extensions,
        )

    def _append(self, content, chunk):
        content += chunk
        if len(content) > MOST_BYTES:
            raise protocol.unusable(
                self.protocol.url, f"more than {MOST_BYTES} bytes"
            )

    @contextlib.contextmanager
    def _errors(self, seconds):
        try:
            yield
        except (TimeoutError, httpcore2.TimeoutException) as error:
            raise ServerError(
                f"{self.protocol.url} took longer than {seconds:.1f} s",
                "DEADLINE_EXCEEDED",
            ) from error
        except ServerError:
            raise
        # The asynchronous pool does not wrap OSErrors, such as those of TLS.
        except (
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            OSError,
        ) as error:
            raise ServerError(
                f"{self.protocol.url} does not answer: {error}"
            ) from error


class AsyncRest(Rest):
    """`Rest` for an event loop."""

    _new_pool = staticmethod(httpcore2.AsyncConnectionPool)

    async def close(self):
        await self._pool.aclose()

    async def send(self, request, seconds):
        # httpcore2 closes the socket when a handshake fails, but not when it
        # is canceled. So connecting and the handshake have half the time each.
        timeouts = {"connect": seconds / 2}
        content = bytearray()
        with self._errors(seconds):
            async with (
                asyncio.timeout(seconds),
                self._call(request, {"timeout": timeouts}) as response,
            ):
                async for chunk in response.aiter_stream():
                    self._append(content, chunk)
        return self.protocol.read_response(
            response.status, response.headers, content
        )


class _UntilDeadline(httpcore2.NetworkBackend):
    """Connects; `timeout` is a moment of `time.monotonic`, here and below.

    httpcore2 applies a timeout to each read and write, so a slow answer could
    take forever.
    """

    def connect_tcp(
        self, host, port, timeout, local_address=None, socket_options=None
    ):
        left = _left(timeout, httpcore2.ConnectTimeout)
        return _Stream(
            httpcore2.SyncBackend().connect_tcp(
                host, port, left, local_address, socket_options
            )
        )


class _Stream(httpcore2.NetworkStream):
    """A connection whose reads and writes share one deadline."""

    def __init__(self, stream):
        self._stream = stream
        self.close = stream.close
        self.get_extra_info = stream.get_extra_info

    def read(self, max_bytes, timeout):
        left = _left(timeout, httpcore2.ReadTimeout)
        return self._stream.read(max_bytes, left)

    def write(self, buffer, timeout):
        for start in range(0, len(buffer), _WRITE_BYTES):
            left = _left(timeout, httpcore2.WriteTimeout)
            self._stream.write(buffer[start : start + _WRITE_BYTES], left)

    def start_tls(self, ssl_context, server_hostname, timeout):
        left = _left(timeout, httpcore2.ConnectTimeout)
        return _Stream(
            self._stream.start_tls(ssl_context, server_hostname, left)
        )


def _left(deadline, timeout_error):
    left = deadline - time.monotonic()
    if left <= 0:
        raise timeout_error
    return left
