"""A client of TensorFlow Serving, NumPy in and NumPy out, gRPC or REST.

Shape letters: N texts, D embedding size.
"""

import functools
import threading
import time
import urllib.parse

import numpy as np
import tenacity

from export import batches, transport
from export.session import DEFAULT_SIGNATURE
from export.transport import ServerError

# What a later attempt may change: a server that starts, restarts or has its
# queue or its threads full. Asking twice does no harm: a model has no state.
_RETRIED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds


class Client:
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
    """

    def __init__(self, model_name, link, timeout):
        self.model_name = model_name
        self.requests = 0
        self._link, self._timeout = link, timeout
        self._signatures = None
        self._counting = threading.Lock()

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
    ):
        """Asks for an answer to every row of the inputs.

        Args:
            inputs: `{name: array}`; strings as arrays of `str`, or of dtype
                object that hold `bytes`.
            signature: name of the signature.
            batch_size: int, the most rows of one request, for inputs and
                outputs whose first axis is the batch; None for one request.
            on_batch: function called with the number of rows of each request
                that is answered.

        Returns:
            `{name: array}`.

        Raises:
            ValueError: if the server has no such signature, an array has a
                value that cannot be sent, or the inputs cannot be split.
            ServerError: if the server refuses, is away, or takes too long.
        """
        signatures = self.signatures()
        if signature not in signatures:
            raise ValueError(
                f"`signature` {signature!r} is not served; there are "
                f"{', '.join(sorted(signatures))}."
            )
        inputs = {name: _as_tensor(array) for name, array in inputs.items()}
        answers = []
        for batch in _batches(inputs, batch_size):
            ask = functools.partial(
                self._link.predict, batch, signature, signatures[signature]
            )
            answers.append(self._ask(ask))
            with self._counting:
                self.requests += 1
            if on_batch:
                on_batch(len(next(iter(batch.values()))))
        if len(answers) == 1:
            return answers[0]
        return {
            name: np.concatenate([answer[name] for answer in answers])
            for name in answers[0]
        }

    def signatures(self):
        """Returns the model's signatures, `{name: SignatureDef}`."""
        if self._signatures is None:
            self._signatures = self._ask(self._link.metadata)[1]
        return self._signatures

    def version(self):
        """Returns the number of the version that answers now, asking once.

        Raises:
            ServerError: if there is none.
        """
        return self._link.metadata(self._timeout)[0]

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
            left = max(deadline - time.monotonic(), _FIRST_PAUSE)
            try:
                self._link.metadata(min(left, self._timeout))
                return
            except ServerError:
                if not still_starting() or time.monotonic() > deadline:
                    raise
                time.sleep(_FIRST_PAUSE)

    def embed(self, texts, kind=None, batch_size=32, on_batch=None, threads=1):
        """Embeds texts, in batches of like length.

        Args:
            texts: list of N `str`.
            kind: name of a prompt, such as "query" or "document"; its
                signature is asked if the model has it, else the default one.
            batch_size: int, texts per request.
            on_batch: function called with the number of texts of each batch
                that is done.
            threads: int, requests under way at once.

        Returns:
            float32 array `[N, D]`, in the order of `texts`.

        Raises:
            ValueError: if `texts` is empty, or the model embeds no texts.
            ServerError: as `predict`.
        """
        signature = batches.signature_of(self.signatures(), kind)

        def ask(batch):
            return self.predict({"text": batch}, signature)[batches.OUTPUT]

        return batches.embed(ask, texts, batch_size, threads, on_batch)

    def _ask(self, attempt):
        """Returns `attempt(seconds left)`, tried again until the deadline."""
        deadline = time.monotonic() + self._timeout
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_passing),
            wait=tenacity.wait_random_exponential(_FIRST_PAUSE, _LONGEST_PAUSE),
            stop=tenacity.stop_before_delay(self._timeout),
            reraise=True,
        )
        return retrying(lambda: attempt(deadline - time.monotonic()))


def _is_passing(error):
    return isinstance(error, ServerError) and error.code in _RETRIED


def _batches(inputs, batch_size):
    """Returns the inputs of each request."""
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


def _as_tensor(array):
    """Turns `str` into UTF-8 `bytes`; other arrays stay as they are."""
    array = np.asarray(array)
    if array.dtype.kind != "U":
        return array
    encoded = [text.encode() for text in array.ravel()]
    return np.array(encoded, object).reshape(array.shape)


def connect(server, model_name, timeout=60.0, version=None, label=None):
    """Returns the client for a server's URL.

    Args:
        server: str, `grpc://host:port` or `http://host:port`.
        model_name: the model's name on the server.
        timeout: float, the deadline of a request in seconds, all its attempts
            together.
        version: int, the version to ask; the newest by default.
        label: str, the label of the version to ask, such as "canary".

    Raises:
        ValueError: if the URL is of another kind, or both `version` and
            `label` are given.
    """
    url = urllib.parse.urlsplit(server)
    links = {"grpc": transport.Grpc, "http": transport.Rest}
    if url.scheme not in links or not url.netloc:
        raise ValueError(
            "`server` must be grpc://HOST:PORT or http://HOST:PORT, received "
            f"{server!r}."
        )
    if version is not None and label is not None:
        raise ValueError(
            "Pass either `version` or `label`, received "
            f"version={version}, label={label!r}."
        )
    link = links[url.scheme](url.netloc, model_name, version, label)
    return Client(model_name, link, timeout)
