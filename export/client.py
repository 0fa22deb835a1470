"""Clients of TensorFlow Serving, NumPy in and NumPy out, gRPC or REST.

Shape letters: N texts, D embedding size.
"""

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tenacity
from google.protobuf.message import Message

from export import address, batches, protocol
from export.grpc_transport import AsyncGrpc, Grpc
from export.protocol import ServerError
from export.rest_transport import AsyncRest, Rest
from export.session import DEFAULT_SIGNATURE

# Less than the 30 s of the server's --rest_api_timeout_in_ms (`server.h`), so
# that the client gives up first and its error says what took long.
DEFAULT_TIMEOUT = 25.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds


class AsyncClient(contextlib.AbstractAsyncContextManager):
    """A connection to one model of a server, for the event loop it is made in.

    A request that finds the server away or overloaded is sent again, with
    exponential backoff and jitter, until its deadline. A `timeout` is the
    deadline of each request in seconds, by default that of the client.
    """

    def __init__(self, link: Grpc | AsyncRest, timeout: float):
        self._link, self._timeout = link, _checked_timeout(timeout)
        self._signatures: dict[str, Message] | None = None

    async def __aexit__(self, *_):
        await self.close()

    async def close(self) -> None:
        await self._link.close()

    async def predict(
        self,
        inputs: Mapping,
        signature: str = DEFAULT_SIGNATURE,
        timeout: float | None = None,
    ) -> protocol.Arrays:
        """Runs a signature on inputs, `{name: array}`, in one request.

        Strings are sent as arrays of `str`, or of dtype object that hold `str`
        or `bytes`, and returned as arrays of dtype object that hold `bytes`.
        The deadline also covers loading the signatures. Raises a `ServerError`
        if the server refuses, is away or takes too long, or if its answer does
        not fit.
        """
        deadline = self._deadline(timeout)
        tensors = protocol.to_tensors(inputs)
        signatures = self._signatures or await self._load_signatures(deadline)
        definition = signatures.get(signature)
        if definition is None:
            raise ValueError(
                f"`signature` {signature!r} is not served; there are "
                f"{', '.join(sorted(signatures))}."
            )
        request = self._link.predict_request(tensors, signature)
        answer = await self._ask(request, deadline)
        read = self._link.read_prediction
        try:
            return read(answer, definition, tensors)
        except ServerError:
            # The server may have loaded a version with other signatures since.
            signatures = await self._load_signatures(deadline)
            newest = signatures.get(signature)
            if newest in (None, definition):
                raise
            return read(answer, newest, tensors)

    async def signatures(
        self, timeout: float | None = None
    ) -> dict[str, Message]:
        """Returns the model's signatures by name; loads them once, and again
        when an answer does not fit them."""
        return self._signatures or await self._load_signatures(
            self._deadline(timeout)
        )

    async def version(self, timeout: float | None = None) -> int:
        """Returns the version that answers now. Does not try again."""
        request, seconds = self._link.metadata_request(), self._seconds(timeout)
        answer = await self._send(request, seconds)
        return self._link.read_metadata(answer)[0]

    async def wait_until_ready(
        self, seconds: float, still_starting: Callable[[], bool] = lambda: True
    ) -> None:
        """Waits for a version; raises a `ServerError` after `seconds`, or as
        soon as `still_starting` returns False."""
        timeout = min(_checked_timeout(seconds), self._timeout)
        deadline = time.monotonic() + seconds
        while True:
            try:
                await self.version(timeout)
                return
            except ServerError:
                if time.monotonic() > deadline or not still_starting():
                    raise
            await self._sleep(_FIRST_PAUSE)

    async def embed(
        self,
        texts: list[str],
        kind: str | None = None,
        batch_size: int = 32,
        on_batch: batches.OnBatch = None,
        concurrency: int = 1,
        timeout: float | None = None,
    ) -> np.ndarray:
        """Embeds N texts in batches of like length: float32 `[N, D]`.

        `kind` is the name of a prompt, such as "query"; a model without it
        embeds by its default signature. `on_batch` gets the number of texts of
        each answered request; `concurrency` requests are under way at once.
        """
        plan = batches.Plan(texts, batch_size, concurrency, on_batch)
        signature = batches.signature_of(await self.signatures(timeout), kind)

        async def ask(batch):
            answer = await self.predict({"text": batch}, signature, timeout)
            return answer[batches.OUTPUT]

        return await self._embed_batches(ask, plan)

    def _seconds(self, timeout):
        return self._timeout if timeout is None else _checked_timeout(timeout)

    def _deadline(self, timeout):
        return time.monotonic() + self._seconds(timeout)

    async def _load_signatures(self, deadline):
        answer = await self._ask(self._link.metadata_request(), deadline)
        _, self._signatures = self._link.read_metadata(answer)
        return self._signatures

    async def _ask(self, request, deadline):
        """Sends a request until it is answered, or the deadline has passed."""

        async def attempt():
            return await self._send(request, deadline - time.monotonic())

        left = deadline - time.monotonic()
        return await tenacity.AsyncRetrying(
            self._sleep,
            # A last attempt without time would hide what the server said.
            tenacity.stop_before_delay(left - _FIRST_PAUSE),
            tenacity.wait_random_exponential(_FIRST_PAUSE, _LONGEST_PAUSE),
            tenacity.retry_if_exception(
                lambda error: getattr(error, "temporary", False)
            ),
            reraise=True,
        )(attempt)

    # `_Blocking` replaces what suspends.

    _sleep = staticmethod(asyncio.sleep)
    _embed_batches = staticmethod(batches.embed_async)

    async def _send(self, request, seconds):
        return await self._link.send(request, seconds)


class _Blocking(AsyncClient):
    """An `AsyncClient` whose coroutines block instead of suspending."""

    @staticmethod
    async def _sleep(seconds):
        time.sleep(seconds)

    @staticmethod
    async def _embed_batches(ask, plan):
        return batches.embed(lambda texts: _result(ask(texts)), plan)

    async def _send(self, request, seconds):
        return self._link.send(request, seconds)


def _result(coroutine):
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError(f"{coroutine} must not suspend.")


def _blocking(method):
    """Makes a method of `Client` from a method of `AsyncClient`."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        return _result(method(self._model, *args, **kwargs))

    return call


class Client(contextlib.AbstractContextManager):
    """An `AsyncClient` for programs without asyncio: its methods block.

    Several threads may use a client at once.
    """

    def __init__(self, link: Grpc | AsyncRest, timeout: float):
        self._link = link
        self._model = _Blocking(link, timeout)

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self._link.close()

    predict = _blocking(AsyncClient.predict)
    signatures = _blocking(AsyncClient.signatures)
    version = _blocking(AsyncClient.version)
    wait_until_ready = _blocking(AsyncClient.wait_until_ready)
    embed = _blocking(AsyncClient.embed)


def connect(
    server: str,
    model_name: str,
    timeout: float = DEFAULT_TIMEOUT,
    **options: Any,
) -> Client:
    """Returns the client for a model on a server.

    `server` is `grpc://host:port` or `http://host:port`, or with TLS
    `grpcs://host:port` or `https://host:port`; a path in an HTTP URL goes
    before `/v1/models`. Proxies that the environment names are not used.
    `timeout` is the deadline of a request in seconds, all its attempts
    together. Options are `version` (int) or `label` (str, such as "canary"),
    by default the newest version; `headers`, `ca`, `certificate`, `key` and
    `gzip` are those of `address.parse`.
    """
    return Client(_link((Grpc, Rest), server, model_name, **options), timeout)


def connect_async(
    server: str,
    model_name: str,
    timeout: float = DEFAULT_TIMEOUT,
    **options: Any,
) -> AsyncClient:
    """Does what `connect` does, for asyncio."""
    link = _link((AsyncGrpc, AsyncRest), server, model_name, **options)
    return AsyncClient(link, timeout)


def _link(kinds, server, model_name, version=None, label=None, **options):
    where = address.parse(server, **options)
    if version is not None and label is not None:
        raise ValueError(
            f"Pass either `version` or `label`, received {version}, {label!r}."
        )
    over_grpc, over_rest = kinds
    kind = over_grpc if where.scheme.startswith("grpc") else over_rest
    return kind(where, model_name, version, label)


def _checked_timeout(timeout):
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(
            f"`timeout` must be a positive number of seconds, not {timeout}."
        )
    return timeout
