"""Bad requests, and the status that each must get.

A server under load gets them between the good ones of `benchmarks.soak`.
"""

import functools
import json
import os
import socket
import typing
import urllib.parse
import zlib
from collections.abc import Callable, Mapping, Sequence

import grpc
import numpy as np
import requests

from export import grpc_transport, messages, protocol
from export.local_server import LocalServer
from export.session import DEFAULT_SIGNATURE

SECONDS = 60  # deadline of one request

# By the name of the mistake: what makes it and returns the status, and the
# right status; None for a request that gets no answer.
Mistakes = dict[str, tuple[Callable[[], object], object]]


def over_rest(
    server: LocalServer,
    name: str,
    inputs: Sequence[str],
    bombs: Mapping[str, bytes],
) -> Mistakes:
    """Returns mistakes over HTTP. `bombs` are bodies of `zipped`."""
    model = f"{server.rest_url}/v1/models/{name}"

    def post(body, path="", **headers):
        url = f"{model}{path}:predict"
        answer = requests.post(url, body, headers=headers, timeout=SECONDS)
        return answer.status_code

    def send(path="", **document):
        return post(json.dumps(document), path)

    def rows(value):
        return {"instances": [dict.fromkeys(inputs, value)]}

    def columns(value):
        return send(inputs=dict.fromkeys(inputs, value))

    def unzip(body):
        return post(body, **{"Content-Encoding": "gzip"})

    def twice():
        """Returns 200 if the first of two equal names counts."""
        first, wrong = (json.dumps(rows(value))[1:-1] for value in ("a", 1))
        return post(f"{{{first}, {wrong}}}")

    good = rows("a text")
    return {
        "broken JSON": (lambda: post(b'{"instances": ["a'), 400),
        "no JSON": (lambda: post(os.urandom(100)), 400),
        "unknown signature": (lambda: send(**good, signature_name="no"), 400),
        "scalar text": (lambda: columns("a"), 400),
        "ragged rows": (lambda: columns([["a"], ["a", "b"]]), 400),
        "wrong type": (lambda: send(**rows(1)), 400),
        "unknown model": (lambda: send("_no", **good), 404),
        "unknown version": (lambda: send(f"/versions/{2**40}", **good), 404),
        "equal names": (twice, 200),
        **{
            f"zipped {item}": (functools.partial(unzip, body), 413)
            for item, body in bombs.items()
        },
        "many texts": (lambda: columns(["a"] * 10_000), 413),
        "two lengths": (functools.partial(two_lengths, server, name), 400),
        "aborted": (functools.partial(abort, server, name), None),
    }


def zipped(item: bytes) -> bytes:
    """Zips 25 million items of JSON."""
    zipper = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    block = item * 10**5
    parts = [zipper.compress(block) for _ in range(250)]
    return b"".join([*parts, zipper.flush()])


def _connected(server):
    url = urllib.parse.urlsplit(server.rest_url)
    return socket.create_connection((url.hostname, url.port), SECONDS)


def two_lengths(server: LocalServer, name: str) -> int:
    """Sends two lengths of one body; returns the status."""
    with _connected(server) as opened:
        opened.sendall(
            f"POST /v1/models/{name}:predict HTTP/1.1\r\nHost: localhost\r\n"
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
            "0\r\n\r\n".encode()
        )
        return int(opened.recv(99).split()[1])


def abort(server: LocalServer, name: str) -> None:
    """Hangs up in the middle of a request."""
    with _connected(server) as opened:
        head = f"POST /v1/models/{name}:predict HTTP/1.1\r\nHost: localhost\r\n"
        opened.sendall(f"{head}Content-Length: 1000\r\n\r\nhalf of".encode())


def over_grpc(
    link: grpc_transport.Grpc,
    address: str,
    model: str,
    signatures: Mapping[str, typing.Any],
    inputs: Sequence[str],
) -> Mistakes:
    """Returns mistakes over gRPC to the server at `address`."""

    def ask_all(arrays, signature):
        try:
            link.send(link.predict_request(arrays, signature), SECONDS)
        except protocol.ServerError as error:
            return error.code
        return "OK"

    def ask(items, signature=DEFAULT_SIGNATURE, dtype=object):
        array = np.array(items, dtype)
        return ask_all(dict.fromkeys(inputs, array), signature)

    invalid, exhausted = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"
    mistakes: Mistakes = {
        "unknown signature": (lambda: ask([b"a"], "no"), "FAILED_PRECONDITION"),
        "scalar text": (lambda: ask(b"a"), invalid),
        "nested text": (lambda: ask([[b"a"]]), invalid),
        "wrong type": (lambda: ask([1], dtype=int), invalid),
        "missing input": (lambda: ask_all({}, DEFAULT_SIGNATURE), invalid),
        "many texts": (lambda: ask([b"a"] * 10_000), exhausted),
        "100 MiB": (lambda: ask([b"a" * 100 * 2**20]), exhausted),
    }
    if "from_token_ids" in signatures:
        names = list(signatures["from_token_ids"].inputs)
        ids = dict.fromkeys(names, np.full([2, 3], 2**30, np.int32))
        mistakes["huge ids"] = (lambda: ask_all(ids, "from_token_ids"), invalid)
        for name, sizes, status in (
            ("filled up", (8192, 96), exhausted),
            ("no such shape", (2**62, 2**62), invalid),
            ("negative shape", (-1, 3), invalid),
        ):
            make = functools.partial(ask_shape, address, model, names, sizes)
            mistakes[name] = make, status
    return mistakes


def ask_shape(
    address: str, model: str, inputs: Sequence[str], sizes: Sequence[int]
) -> str:
    """Sends shapes without values; returns the gRPC status."""
    request = messages.predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "from_token_ids"
    for name in inputs:
        proto = request.inputs[name]
        proto.dtype = messages.types_pb2.DT_INT32
        for size in sizes:
            proto.tensor_shape.dim.add(size=size)
    with grpc.insecure_channel(address) as channel:
        stub = messages.prediction_service_pb2_grpc.PredictionServiceStub
        try:
            stub(channel).Predict(request, timeout=SECONDS)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"
