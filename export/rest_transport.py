"""Asks a model server over REST, blocking or async, with JSON documents.

`export.client` adds retries and batches.
"""

import asyncio
import base64
import contextlib
import gzip
import json
import threading
import urllib.parse
import zlib
from collections.abc import Coroutine, Iterator
from typing import Any

import httpcore2
import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from export import messages
from export.address import Address
from export.protocol import (
    MOST_BYTES,
    Arrays,
    ServerError,
    check_outputs,
    unusable,
)

# As the model server maps them, `http_server.cc`; 400 is also
# FAILED_PRECONDITION and OUT_OF_RANGE. 413 and 502 are a proxy's.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# A proxy answers 502 and 504 for a server that is away.
_TEMPORARY = (429, 502, 503, 504)
_SHOWN = 500  # characters of a server's error
# Shorter than the model server keeps idle HTTP connections: 50 s,
# HTTP_READ_TIMEOUT of libevent's `http-internal.h`.
_IDLE_SECONDS = 30


class AsyncRest:
    """A REST connection for an event loop; methods as those of `AsyncGrpc`.

    A request is a path and a body, None for GET; an answer is a body.
    """

    def __init__(
        self,
        address: Address,
        model_name: str,
        version: int | None = None,
        label: str | None = None,
    ):
        def quoted(name: str) -> str:
            return urllib.parse.quote(name, safe="")

        self.url = address.url
        self._gzip = address.gzip
        self._path = f"{address.prefix}/v1/models/{quoted(model_name)}"
        if version is not None:
            self._path += f"/versions/{version}"
        elif label is not None:
            self._path += f"/labels/{quoted(label)}"
        self._headers = {
            "host": address.netloc,
            "accept": "application/json",
            "accept-encoding": "gzip",
            **address.headers,
        }
        self._origin = httpcore2.URL(f"{address.scheme}://{address.netloc}")
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=address.tls.context if address.tls else None,
            max_connections=None,  # one per request under way
            keepalive_expiry=_IDLE_SECONDS,
        )

    def predict_request(
        self, inputs: Arrays, signature: str
    ) -> tuple[str, bytes]:
        """Returns the request to run a signature."""
        columns = {}
        for key, array in inputs.items():
            if array.dtype.kind not in "OUbiu" and not np.isfinite(array).all():
                raise ValueError(
                    f"`inputs[{key!r}]` must be finite over REST, since JSON "
                    "has no NaN and no infinity. Ask over gRPC."
                )
            columns[key] = _to_json(array)
        document = {"signature_name": signature, "inputs": columns}
        body = json.dumps(document, allow_nan=False).encode()
        if self._gzip:
            body = gzip.compress(body, compresslevel=1)  # the quickest
        return f"{self._path}:predict", body

    def metadata_request(self) -> tuple[str, None]:
        """Returns the request for the model's signatures."""
        return f"{self._path}/metadata", None

    async def send(
        self, request: tuple[str, bytes | None], seconds: float
    ) -> bytes:
        """Sends a request once; returns the body of the answer."""
        # httpcore2 closes the socket when a handshake fails, but not when it
        # is canceled. So connecting and the handshake have half the time each.
        timeouts = {"connect": seconds / 2}
        path, body = request
        content = bytearray()
        with self._errors(seconds):
            async with (
                asyncio.timeout(seconds),
                self._pool.stream(
                    "GET" if body is None else "POST",
                    # Parsing the whole URL would change the path.
                    httpcore2.URL(
                        scheme=self._origin.scheme,
                        host=self._origin.host,
                        port=self._origin.port,
                        target=path,
                    ),
                    headers=[*self._headers_of(body).items()],
                    content=body,
                    extensions={"timeout": timeouts},
                ) as response,
            ):
                async for chunk in response.aiter_stream():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise unusable(
                            self.url, f"more than {MOST_BYTES} bytes"
                        )
        return self.read_response(response.status, response.headers, content)

    async def close(self) -> None:
        """Closes the connections."""
        await self._pool.aclose()

    def _headers_of(self, body: bytes | None) -> dict[str, str]:
        if body is None:
            return self._headers
        headers = {
            **self._headers,
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        if self._gzip:
            headers["content-encoding"] = "gzip"
        return headers

    @contextlib.contextmanager
    def _errors(self, seconds: float) -> Iterator[None]:
        try:
            yield
        except (TimeoutError, httpcore2.TimeoutException) as error:
            raise ServerError(
                f"{self.url} took longer than {seconds:.1f} s",
                "DEADLINE_EXCEEDED",
            ) from error
        except ServerError:
            raise
        # httpcore2 does not wrap OSErrors, such as those of TLS.
        except (
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            OSError,
        ) as error:
            raise ServerError(f"{self.url} does not answer: {error}") from error

    def read_response(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        content: bytes | bytearray,
    ) -> bytes:
        """Returns the body of a response, unzipped.

        Raises a `ServerError` if the HTTP status is not 200.
        """
        fields = {name.lower(): value for name, value in headers}
        encoding = fields.get(b"content-encoding", b"").lower()
        if encoding in (b"gzip", b"x-gzip"):
            content = self._unzipped(content)
        if status == 200:
            return bytes(content)
        if 300 <= status < 400:
            # Following it could send secret headers to another server.
            place = fields.get(b"location", b"nowhere").decode("latin-1")
            raise ServerError(
                f"{self.url} answered {status}, a redirect to {place[:_SHOWN]}."
                " Pass the address of the server itself.",
                "UNKNOWN",
            )
        raise ServerError(
            f"{self.url} answered {status}: {_message(content)}",
            _CODES.get(status, "UNKNOWN"),
            status in _TEMPORARY,
        )

    def _unzipped(self, content):
        unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            unzipped = unzip.decompress(content, MOST_BYTES)
        except zlib.error as error:
            raise unusable(self.url, f"broken gzip: {error}") from error
        if unzip.eof:
            return unzipped
        if unzip.unconsumed_tail:
            raise unusable(self.url, f"more than {MOST_BYTES} bytes")
        raise unusable(self.url, "gzip that is cut off")

    def read_prediction(
        self, answer: bytes, definition: Message, inputs: Arrays
    ) -> Arrays:
        """Returns the outputs in an answer, which fit the `SignatureDef`."""
        document = self._parse(answer)
        outputs = document.get("outputs")
        if len(definition.outputs) == 1:
            outputs = {next(iter(definition.outputs)): outputs}
        if not isinstance(outputs, dict) or None in outputs.values():
            raise unusable(self.url, f"without `outputs`: {_excerpt(answer)}")
        arrays = {}
        for key, info in definition.outputs.items():
            if key in outputs:
                try:
                    arrays[key] = _to_array(outputs[key], info)
                except (ValueError, TypeError, OverflowError) as error:
                    raise unusable(
                        self.url, f"{key!r} that does not fit: {error}"
                    ) from error
        return check_outputs(self.url, arrays, definition, inputs)

    def read_metadata(self, answer: bytes) -> tuple[int, dict[str, Message]]:
        """Returns the version that answered, and `{name: SignatureDef}`."""
        document = self._parse(answer)
        try:
            signatures = json_format.ParseDict(
                document["metadata"]["signature_def"],
                messages.get_model_metadata_pb2.SignatureDefMap(),
                ignore_unknown_fields=True,
            )
            version = int(document["model_spec"]["version"])
        except (
            KeyError,
            TypeError,
            ValueError,
            json_format.ParseError,
        ) as error:
            raise unusable(
                self.url,
                f"without the signatures of a model: {_excerpt(answer)}",
            ) from error
        return version, dict(signatures.signature_def)

    def _parse(self, content):
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            text = _excerpt(content)
            raise unusable(self.url, f"what is not a JSON object: {text}")
        return document


class Rest(AsyncRest):
    """`AsyncRest` for threads: an event loop of its own sends the requests."""

    def __init__(
        self,
        address: Address,
        model_name: str,
        version: int | None = None,
        label: str | None = None,
    ):
        super().__init__(address, model_name, version, label)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True
        )
        self._thread.start()

    def _wait(self, coroutine: Coroutine) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # after an interrupt

    # Both block, where those of `AsyncRest` are coroutines.

    def send(self, request: tuple[str, bytes | None], seconds: float) -> Any:
        return self._wait(super().send(request, seconds))

    def close(self) -> Any:
        self._wait(super().close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _excerpt(content):
    text = content[: 4 * _SHOWN].decode(errors="replace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _message(content):
    """Returns the error in an answer; that of a proxy may not be JSON."""
    try:
        message = json.loads(content)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return _excerpt(content)
    return message if isinstance(message, str) else _excerpt(content)


def _to_json(array):
    """Writes an array as nested lists; bytes that are not UTF-8 as base64."""
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
    dtype = messages.numpy_dtype(info.dtype)
    # Without a dtype NumPy would read "1.5", null and true as numbers, too.
    array = np.array(values, object if dtype.kind in "Oiu" else None)
    if not array.size:  # empty lists do not say how long their items are
        declared = info.tensor_shape.dim[array.ndim :]
        shape = [*array.shape, *(max(dim.size, 0) for dim in declared)]
        return np.empty(shape, dtype)
    if dtype.kind == "O":
        for index, item in np.ndenumerate(array):
            array[index] = _to_bytes(item)
        return array
    if dtype.kind in "iu":
        for item in array.flat:
            if type(item) is not int:
                raise ValueError(f"{item!r} is not an integer")
        return array.astype(dtype)
    if array.dtype.kind not in ("b" if dtype.kind == "b" else "iuf"):
        first = array.ravel()[:1].tolist()[0]
        raise ValueError(f"{first!r} is not {dtype}")
    with np.errstate(over="ignore"):  # numbers that are too large become inf
        return array.astype(dtype)


def _to_bytes(item):
    if isinstance(item, dict) and isinstance(item.get("b64"), str):
        return base64.b64decode(item["b64"], validate=True)
    if not isinstance(item, str):
        raise ValueError(f"{item!r} is not a string")
    return item.encode()
