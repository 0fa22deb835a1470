"""Asks a model server over REST, blocking or async, with JSON documents.

`export.client` adds retries and batches.
"""

import asyncio
import base64
import functools
import gzip
import json
import threading
import urllib.parse
import zlib
from typing import Any

import httpcore2
import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from export import messages
from export.address import Address
from export.protocol import Arrays, ServerError, check_outputs, unusable

# Of several codes of a status the first. 413 and 502 are a proxy's.
_CODES = {413: "RESOURCE_EXHAUSTED", 502: "UNAVAILABLE"}
_CODES |= {s: code for code, s in reversed(messages.HTTP_STATUS.items())}
# A proxy answers 502 and 504 for a server that is away.
_TEMPORARY = (429, 502, 503, 504)
# What reading an answer raises if it is not that of a model.
_MISFITS = (
    *(KeyError, TypeError, ValueError, OverflowError, RecursionError),
    json_format.ParseError,
)
# What JSON has for the kinds of NumPy's dtypes.
_PYTHON_TYPES: dict[str, set[type]] = dict(
    b={bool}, i={int}, u={int}, f={int, float}, O={str, dict}
)
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
        quoted = functools.partial(urllib.parse.quote, safe="")
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
            "content-type": "application/json",
            **address.headers,
        }
        self._origin = f"{address.scheme}://{address.netloc}"
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=address.tls.context if address.tls else None,
            max_connections=None,  # one per request under way
            keepalive_expiry=_IDLE_SECONDS,
        )

    def predict_request(
        self, inputs: Arrays, signature: str
    ) -> tuple[str, bytes]:
        columns = {key: _to_json(array) for key, array in inputs.items()}
        document = {"signature_name": signature, "inputs": columns}
        try:
            body = json.dumps(document, allow_nan=False).encode()
        except ValueError as error:
            raise ValueError(
                "`inputs` must be finite over REST, since JSON has no NaN and "
                "no infinity. Ask over gRPC."
            ) from error
        if self._gzip:
            body = gzip.compress(body, compresslevel=1)  # the quickest
        return f"{self._path}:predict", body

    def metadata_request(self) -> tuple[str, None]:
        return f"{self._path}/metadata", None

    async def send(
        self, request: tuple[str, bytes | None], seconds: float
    ) -> bytes:
        path, body = request
        headers = dict(self._headers)
        if body is not None and self._gzip:
            headers["content-encoding"] = "gzip"
        extensions = {
            # Parsing the whole URL would change the path.
            "target": path.encode(),
            # httpcore2 closes the socket when a handshake fails, but not when
            # it is canceled. So connecting and the handshake have half the
            # time each.
            "timeout": {"connect": seconds / 2},
        }
        try:
            async with asyncio.timeout(seconds):
                response = await self._pool.request(
                    "GET" if body is None else "POST",
                    self._origin,
                    headers=[*headers.items()],
                    content=body,
                    extensions=extensions,
                )
        except (TimeoutError, httpcore2.TimeoutException) as error:
            raise ServerError(
                f"{self.url} took longer than {seconds:.1f} s",
                "DEADLINE_EXCEEDED",
            ) from error
        # httpcore2 does not wrap OSErrors, such as those of TLS.
        except (
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            OSError,
        ) as error:
            raise ServerError(f"{self.url} does not answer: {error}") from error
        return self._read(response.status, response.headers, response.content)

    async def close(self) -> None:
        await self._pool.aclose()

    def _read(self, status, headers, content):
        """Returns the body of a response; an error unless its status is 200."""
        fields = {name.lower(): value for name, value in headers}
        if fields.get(b"content-encoding", b"").lower() in (b"gzip", b"x-gzip"):
            try:
                content = gzip.decompress(content)
            except (OSError, EOFError, zlib.error) as error:
                raise unusable(self.url, f"broken gzip: {error}") from error
        if status == 200:
            return content
        try:
            said = json.loads(content)["error"]
        except (ValueError, TypeError, KeyError, RecursionError):
            said = _excerpt(content)  # a proxy's
        if b"location" in fields:
            # Following it could send secret headers to another server.
            said = f"a redirect to {fields[b'location'].decode('latin-1')}"
        raise ServerError(
            f"{self.url} answered {status}: {said}",
            _CODES.get(status, "UNKNOWN"),
            status in _TEMPORARY,
        )

    def read_prediction(
        self, answer: bytes, definition: Message, inputs: Arrays
    ) -> Arrays:
        infos = definition.outputs
        try:
            outputs = json.loads(answer)["outputs"]
            if len(infos) == 1:
                outputs = {next(iter(infos)): outputs}
            arrays = {key: _to_array(outputs[key], infos[key]) for key in infos}
        except _MISFITS as error:
            raise self._misfit(answer, error) from error
        return check_outputs(self.url, arrays, definition, inputs)

    def read_metadata(self, answer: bytes) -> tuple[int, dict[str, Message]]:
        try:
            document = json.loads(answer)
            signatures = json_format.ParseDict(
                document["metadata"]["signature_def"],
                messages.get_model_metadata_pb2.SignatureDefMap(),
                ignore_unknown_fields=True,
            )
            version = int(document["model_spec"]["version"])
        except _MISFITS as error:
            raise self._misfit(answer, error) from error
        return version, dict(signatures.signature_def)

    def _misfit(self, answer, error):
        what = f"what does not fit ({error!r:.200}): {_excerpt(answer)}"
        return unusable(self.url, what)


class Rest(AsyncRest):
    """`AsyncRest` for threads: an event loop of its own sends the requests."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, daemon=True
        )
        self._thread.start()

    def _wait(self, coroutine):
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
    # Without dtype=object NumPy would read "1.5", null and true as numbers too.
    array = np.array(values, object)
    if not array.size:  # empty lists do not say how long their items are
        declared = info.tensor_shape.dim[array.ndim :]
        shape = [*array.shape, *(max(dim.size, 0) for dim in declared)]
        return np.empty(shape, dtype)
    for other in {*map(type, array.flat)} - _PYTHON_TYPES[dtype.kind]:
        raise ValueError(f"{other.__name__} is not {dtype}")
    if dtype.kind == "O":
        for index, item in np.ndenumerate(array):
            if isinstance(item, str):
                array[index] = item.encode()
            else:
                array[index] = base64.b64decode(item["b64"], validate=True)
        return array
    with np.errstate(over="ignore"):  # numbers that are too large become inf
        return array.astype(dtype)
