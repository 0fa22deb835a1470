"""Clients of TensorFlow Serving, NumPy in and NumPy out, gRPC or REST.

Shape letters: N texts, D embedding size.
"""

import math
import threading
import time

import numpy as np
import tenacity

from export import address, batches, protocol, transport
from export.protocol import ServerError
from export.session import DEFAULT_SIGNATURE

# Less than the 30 s of the server's --rest_api_timeout_in_ms (`server.h`): the
# client says what took long, and the server does not work for nobody.
DEFAULT_TIMEOUT = 25.0  # seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds


class _Model:
    """What both clients have in common, which is all but the waiting.

    Methods that end in `_steps` are generators: they yield requests, each with
    the moment of `time.monotonic` by which it must be answered, are sent the
    answers, and return the result.
    """

    def __init__(self, model_name, link, timeout=DEFAULT_TIMEOUT):
        self.model_name = model_name
        self.requests = 0
        self._link, self._timeout = link, _checked_timeout(timeout)
        self._signatures = None
        self._counting = threading.Lock()

    def _seconds(self, timeout):
        return self._timeout if timeout is None else _checked_timeout(timeout)

    def _deadline(self, timeout):
        return time.monotonic() + self._seconds(timeout)

    def _signatures_steps(self, deadline):
        if self._signatures is None:
            yield from self._newest_signatures_steps(deadline)
        return self._signatures

    def _newest_signatures_steps(self, deadline):
        answer = yield self._link.protocol.metadata(), deadline
        self._signatures = self._link.protocol.read_metadata(answer)[1]

    def _predict_steps(self, inputs, signature, batch_size, on_batch, timeout):
        deadline = self._deadline(timeout)
        parts = protocol.split(protocol.to_tensors(inputs), batch_size)
        yield from self._signatures_steps(deadline)
        answers = []
        for part in parts:
            answer = yield from self._part_steps(part, signature, deadline)
            answers.append(answer)
            deadline = self._deadline(timeout)  # of the next request
            with self._counting:
                self.requests += 1
            if on_batch:
                on_batch(len(next(iter(part.values()), ())))
        if len(answers) == 1:
            return answers[0]
        try:
            return {
                name: np.concatenate([answer[name] for answer in answers])
                for name in answers[0]
            }
        except ValueError as error:
            raise ValueError(
                "The answers of several requests cannot be joined, since an "
                "output has no rows or another version answers meanwhile. "
                f"Pass no `batch_size`, or `version`: {error}"
            ) from error

    def _part_steps(self, inputs, signature, deadline):
        definition = self._signatures.get(signature)
        if definition is None:
            raise ValueError(
                f"`signature` {signature!r} is not served; there are "
                f"{', '.join(sorted(self._signatures))}."
            )
        answer = yield self._link.protocol.predict(inputs, signature), deadline
        read = self._link.protocol.read_prediction
        try:
            return read(answer, definition, inputs)
        except ServerError:
            # The server may have loaded a version with other signatures since.
            yield from self._newest_signatures_steps(deadline)
            newest = self._signatures.get(signature)
            if newest in (None, definition):
                raise
            return read(answer, newest, inputs)


class Client(_Model):
    """A connection to one model of a server.

    A request that finds the server away or overloaded is sent again, with
    exponential backoff and jitter, until its deadline.

    Args:
        model_name: the model's name on the server.
        link: a `transport.Grpc` or `transport.Rest`.
        timeout: float, the deadline of a request in seconds, all its attempts
            together.

    Attributes:
        model_name: as given.
        requests: the number of predict requests that were answered.

    A client is a context manager, which closes the connection. Several threads
    may ask at once.

    Methods take another `timeout` for their requests, in seconds.
    """

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the connection."""
        self._link.close()

    def predict(
        self,
        inputs,
        signature=DEFAULT_SIGNATURE,
        batch_size=None,
        on_batch=None,
        timeout=None,
    ):
        """Asks for an answer to every row of the inputs.

        Args:
            inputs: `{name: array}`; strings as arrays of `str`, or of dtype
                object that hold `str` or `bytes`.
            signature: name of the signature.
            batch_size: int, the most rows of one request, for inputs and
                outputs whose first axis is the batch; None for one request.
            on_batch: function called with the number of rows of each request
                that is answered.
            timeout: float, the deadline of each request in seconds; the
                client's by default. The first one includes the question for
                the signatures, where they are not known yet.

        Returns:
            `{name: array}`, of the dtypes and shapes that the signature
            declares; strings as arrays of dtype object that hold `bytes`.

        Raises:
            ValueError: if the server has no such signature, an array has a
                value that cannot be sent, or the inputs cannot be split.
            ServerError: if the server refuses, is away, or takes too long, or
                if its answer does not fit the signature or the number of rows.
        """
        return self._run(
            self._predict_steps(
                inputs, signature, batch_size, on_batch, timeout
            )
        )

    def signatures(self, timeout=None):
        """Returns the model's signatures, `{name: SignatureDef}`.

        They are asked for once, and again when an answer does not fit them.

        Raises:
            ServerError: if the server refuses, is away, or takes too long.
        """
        return self._run(self._signatures_steps(self._deadline(timeout)))

    def version(self, timeout=None):
        """Returns the number of the version that answers now, asking once.

        Raises:
            ServerError: if there is none.
        """
        request = self._link.protocol.metadata()
        answer = self._link.send(request, self._seconds(timeout))
        return self._link.protocol.read_metadata(answer)[0]

    def wait_until_ready(self, seconds, still_starting=lambda: True):
        """Waits for a version to become available.

        Args:
            seconds: float, how long to wait.
            still_starting: function without arguments; the wait is given up
                when it returns False.

        Raises:
            ServerError: if none does.
        """
        retrying = tenacity.Retrying(**_waiting(seconds, still_starting))
        retrying(self.version, min(_checked_timeout(seconds), self._timeout))

    def embed(
        self,
        texts,
        kind=None,
        batch_size=32,
        on_batch=None,
        concurrency=1,
        timeout=None,
    ):
        """Embeds texts, in batches of like length.

        Args:
            texts: list of N `str`.
            kind: name of a prompt, such as "query" or "document"; its
                signature is asked if the model has it, else the default one.
            batch_size: int, texts per request.
            on_batch: function called with the number of texts of each batch
                that is done.
            concurrency: int, requests under way at once.
            timeout: float, the deadline of each request in seconds; the
                client's by default.

        Returns:
            float32 array `[N, D]`, in the order of `texts`.

        Raises:
            ValueError: if `texts` is empty or holds something else, or the
                model embeds no texts.
            ServerError: as `predict`.
        """
        plan = batches.Plan(texts, batch_size, concurrency)
        signature = batches.signature_of(self.signatures(timeout), kind)

        def ask(batch):
            answer = self.predict({"text": batch}, signature, timeout=timeout)
            return answer[batches.OUTPUT]

        return batches.embed(ask, plan, on_batch)

    def _run(self, steps):
        """Returns the result of a generator, answering its requests."""
        answer = None
        while True:
            try:
                request, deadline = steps.send(answer)
            except StopIteration as end:
                return end.value
            left = deadline - time.monotonic()
            answer = tenacity.Retrying(**_until(left))(
                lambda r, d: self._link.send(r, d - time.monotonic()),
                request,
                deadline,
            )


class AsyncClient(_Model):
    """A `Client` for asyncio, whose methods are coroutines.

    Arguments, results and errors of a method are those of `Client`'s; `link`
    is a `transport.AsyncGrpc` or a `transport.AsyncRest`. The client belongs
    to the event loop that it is made in, where any number of tasks may ask at
    once. To cancel a task cancels its request. It is an asynchronous context
    manager, which closes the connection.
    """

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def close(self):
        """Closes the connection."""
        await self._link.close()

    async def predict(
        self,
        inputs,
        signature=DEFAULT_SIGNATURE,
        batch_size=None,
        on_batch=None,
        timeout=None,
    ):
        """Asks for an answer to every row, see `Client.predict`."""
        return await self._run(
            self._predict_steps(
                inputs, signature, batch_size, on_batch, timeout
            )
        )

    async def signatures(self, timeout=None):
        """Returns the model's signatures, see `Client.signatures`."""
        return await self._run(self._signatures_steps(self._deadline(timeout)))

    async def version(self, timeout=None):
        """Returns the version that answers now, see `Client.version`."""
        request = self._link.protocol.metadata()
        answer = await self._link.send(request, self._seconds(timeout))
        return self._link.protocol.read_metadata(answer)[0]

    async def wait_until_ready(self, seconds, still_starting=lambda: True):
        """Waits for a version, see `Client.wait_until_ready`."""
        retrying = tenacity.AsyncRetrying(**_waiting(seconds, still_starting))
        await retrying(
            self.version, min(_checked_timeout(seconds), self._timeout)
        )

    async def embed(
        self,
        texts,
        kind=None,
        batch_size=32,
        on_batch=None,
        concurrency=1,
        timeout=None,
    ):
        """Embeds texts, in batches of like length, see `Client.embed`."""
        plan = batches.Plan(texts, batch_size, concurrency)
        signature = batches.signature_of(await self.signatures(timeout), kind)

        async def ask(batch):
            answer = await self.predict(
                {"text": batch}, signature, timeout=timeout
            )
            return answer[batches.OUTPUT]

        return await batches.embed_async(ask, plan, on_batch)

    async def _run(self, steps):
        answer = None
        while True:
            try:
                request, deadline = steps.send(answer)
            except StopIteration as end:
                return end.value

            async def attempt(request=request, deadline=deadline):
                left = deadline - time.monotonic()
                return await self._link.send(request, left)

            left = deadline - time.monotonic()
            answer = await tenacity.AsyncRetrying(**_until(left))(attempt)


def connect(
    server,
    model_name,
    timeout=DEFAULT_TIMEOUT,
    version=None,
    label=None,
    *,
    headers=None,
    ca=None,
    certificate=None,
    key=None,
    gzip=False,
):
    """Returns the client for a server's URL.

    Answers may be compressed by gzip in any case. Proxies that the environment
    names are not used.

    Args:
        server: str, `grpc://host:port` or `http://host:port`, or with TLS
            `grpcs://host:port` or `https://host:port`. A path in an HTTP URL
            goes before `/v1/models`.
        model_name: the model's name on the server.
        timeout: float, the deadline of a request in seconds, all its attempts
            together. The default is less than the 30 s after which a server
            gives up by default.
        version: int, the version to ask; the newest by default.
        label: str, the label of the version to ask, such as "canary".
        headers: `{name: value}`, sent with every request, over gRPC as
            metadata; such as `{"Authorization": "Bearer ..."}`.
        ca: path of a PEM file of the certificate authorities to trust; the
            system's by default.
        certificate: path of a PEM file of the client's certificate chain, for
            servers that ask for one.
        key: path of a PEM file of its key; in `certificate`, too, by default.
        gzip: bool, whether to compress requests.

    Raises:
        ValueError: if the URL, a header, a PEM file or `timeout` will not do,
            or both `version` and `label` are given.
        FileNotFoundError: if there is no such PEM file.
    """
    link = _link(
        (transport.Grpc, transport.Rest),
        address.parse(server, headers, ca, certificate, key, gzip),
        *(model_name, version, label),
    )
    return Client(model_name, link, timeout)


def connect_async(
    server,
    model_name,
    timeout=DEFAULT_TIMEOUT,
    version=None,
    label=None,
    **options,
):
    """Returns the `AsyncClient` for a server's URL.

    To be called in the event loop that is to use the client. Arguments and
    errors are those of `connect`.
    """
    link = _link(
        (transport.AsyncGrpc, transport.AsyncRest),
        address.parse(server, **options),
        *(model_name, version, label),
    )
    return AsyncClient(model_name, link, timeout)


def _link(classes, where, model_name, version, label):
    if version is not None and label is not None:
        raise ValueError(
            "Pass either `version` or `label`, received "
            f"version={version}, label={label!r}."
        )
    over_grpc, over_rest = classes
    cls = over_grpc if where.scheme in ("grpc", "grpcs") else over_rest
    return cls(where, model_name, version, label)


def _checked_timeout(timeout):
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(
            f"`timeout` must be a positive number of seconds, not {timeout}."
        )
    return timeout


def _until(seconds):
    """Returns how tenacity asks again what may pass, for so long."""
    return dict(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, ServerError) and error.temporary
        ),
        wait=tenacity.wait_random_exponential(_FIRST_PAUSE, _LONGEST_PAUSE),
        # A last attempt without time would hide what the server said.
        stop=tenacity.stop_before_delay(seconds - _FIRST_PAUSE),
        reraise=True,
    )


def _waiting(seconds, still_starting):
    """Returns how tenacity asks for a server that is to come, for so long."""
    return dict(
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, ServerError) and still_starting()
        ),
        wait=tenacity.wait_fixed(_FIRST_PAUSE),
        stop=tenacity.stop_after_delay(seconds),
        reraise=True,
    )
