"""Bad requests, and the status that each must get.

A server under load gets them between the good ones of `benchmarks.soak`.
"""

import functools
import json
import os
import socket
import urllib.parse
import zlib

import grpc
import numpy as np
import requests

from export import messages, protocol
from export.session import DEFAULT_SIGNATURE

SECONDS = 60  # deadline of one request


def over_rest(server, name, inputs, bombs):
    """Returns `{mistake: (function that makes it, right HTTP status)}`."""
    model = f"{server.rest_url}/v1/models/{name}"

    def post(body, url=f"{model}:predict"):
        return requests.post(url, data=body, timeout=SECONDS).status_code

    def send(document, url=f"{model}:predict"):
        return requests.post(url, json=document, timeout=SECONDS).status_code

    def unzip(body):
        return requests.post(
            f"{model}:predict",
            data=body,
            headers={"Content-Encoding": "gzip"},
            timeout=SECONDS,
        ).status_code

    def rows(value):
        return {"instances": [dict.fromkeys(inputs, value)]}

    def twice():
        """Returns 200 if the first of two equal names counts."""
        first, wrong = (json.dumps(rows(value))[1:-1] for value in ("a", 1))
        return post(f"{{{first}, {wrong}}}")

    good = rows("a text")
    return {
        "broken JSON": (lambda: post(b'{"instances": ["a'), 400),
        "no JSON": (lambda: post(os.urandom(100)), 400),
        "unknown signature": (
            lambda: send({**good, "signature_name": "no"}),
            400,
        ),
        "scalar text": (
            lambda: send({"inputs": dict.fromkeys(inputs, "a")}),
            400,
        ),
        "ragged rows": (
            lambda: send(
                {"inputs": dict.fromkeys(inputs, [["a"], ["a", "b"]])}
            ),
            400,
        ),
        "wrong type": (lambda: send(rows(1)), 400),
        "unknown model": (lambda: send(good, f"{model}_no:predict"), 404),
        "unknown version": (
            lambda: send(good, f"{model}/versions/{2**40}:predict"),
            404,
        ),
        "equal names": (twice, 200),
        **{
            f"zipped {item}": (functools.partial(unzip, body), 413)
            for item, body in bombs.items()
        },
        "many texts": (
            lambda: send({"inputs": dict.fromkeys(inputs, ["a"] * 10_000)}),
            413,
        ),
        "two lengths": (functools.partial(two_lengths, server, name), 400),
        "aborted": (functools.partial(abort, server, name), None),
    }


def zipped(item):
    """Zips 25 million items of JSON."""
    zipper = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    block = item * 10**5
    parts = [zipper.compress(block) for _ in range(250)]
    return b"".join([*parts, zipper.flush()])


def two_lengths(server, name):
    """Sends two lengths of one body; returns the status."""
    url = urllib.parse.urlsplit(server.rest_url)
    with socket.create_connection((url.hostname, url.port), SECONDS) as opened:
        opened.sendall(
            f"POST /v1/models/{name}:predict HTTP/1.1\r\nHost: localhost\r\n"
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
            "0\r\n\r\n".encode()
        )
        return int(opened.recv(99).split()[1])


def abort(server, name):
    """Hangs up in the middle of a request."""
    url = urllib.parse.urlsplit(server.rest_url)
    with socket.create_connection((url.hostname, url.port), SECONDS) as opened:
        head = f"POST /v1/models/{name}:predict HTTP/1.1\r\nHost: localhost\r\n"
        opened.sendall(f"{head}Content-Length: 1000\r\n\r\nhalf of".encode())


def over_grpc(link, address, model, signatures, inputs):
    """Returns `{mistake: (function that makes it, right gRPC status)}`."""

    def ask(array, signature=DEFAULT_SIGNATURE):
        return ask_all(dict.fromkeys(inputs, array), signature)

    def ask_all(arrays, signature):
        try:
            link.send(link.predict_request(arrays, signature), SECONDS)
        except protocol.ServerError as error:
            return error.code
        return "OK"

    def strings(*items):
        return np.array(items, object)

    mistakes = {
        "unknown signature": (
            lambda: ask(strings(b"a"), "no"),
            "FAILED_PRECONDITION",
        ),
        "scalar text": (
            lambda: ask(np.array(b"a", object)),
            "INVALID_ARGUMENT",
        ),
        "nested text": (lambda: ask(strings([b"a"])), "INVALID_ARGUMENT"),
        "wrong type": (lambda: ask(np.array([1])), "INVALID_ARGUMENT"),
        "missing input": (
            lambda: ask_all({}, DEFAULT_SIGNATURE),
            "INVALID_ARGUMENT",
        ),
        "many texts": (
            lambda: ask(np.full(10_000, b"a", object)),
            "RESOURCE_EXHAUSTED",
        ),
        "100 MiB": (
            lambda: ask(strings(b"a" * 100 * 2**20)),
            "RESOURCE_EXHAUSTED",
        ),
    }
    if "from_token_ids" in signatures:
        ids = dict.fromkeys(
            signatures["from_token_ids"].inputs,
            np.full([2, 3], 2**30, np.int32),
        )
        mistakes["huge ids"] = (
            lambda: ask_all(ids, "from_token_ids"),
            "INVALID_ARGUMENT",
        )
        for name, sizes, status in (
            ("filled up", (8192, 96), "RESOURCE_EXHAUSTED"),
            ("no such shape", (2**62, 2**62), "INVALID_ARGUMENT"),
            ("negative shape", (-1, 3), "INVALID_ARGUMENT"),
        ):
            mistakes[name] = (
                functools.partial(ask_shape, address, model, list(ids), sizes),
                status,
            )
    return mistakes


def ask_shape(address, model, inputs, sizes):
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
