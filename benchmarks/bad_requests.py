"""Bad requests, and the status that each must get.

A server under load gets them between the good ones of `benchmarks.soak`.
"""

import functools
import json
import socket
import urllib.parse
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import requests

from export import address, grpc_transport, protocol
from export.local_server import LocalServer
from export.session import DEFAULT_SIGNATURE

SECONDS = 60  # deadline of one request

# What sends a bad request and returns the status, and the right status; None
# for a request that gets no answer. By the name of the mistake.
Mistakes = dict[str, tuple[Callable[[], object], object]]


def over_rest(
    server: LocalServer, name: str, signatures: Mapping[str, Any]
) -> Mistakes:
    """Mistakes over HTTP."""
    inputs = signatures[DEFAULT_SIGNATURE].inputs

    def rows(value, **others):
        return {"instances": [dict.fromkeys(inputs, value)], **others}

    def columns(value):
        return {"inputs": dict.fromkeys(inputs, value)}

    good = rows("a text")
    zipped = {"Content-Encoding": "gzip"}
    bodies: dict[str, tuple[Any, int, str, dict[str, str]]] = {
        "broken JSON": (b'{"instances": ["a', 400, "", {}),
        "unknown signature": (rows("a", signature_name="no"), 400, "", {}),
        "scalar text": (columns("a"), 400, "", {}),
        "ragged rows": (columns([["a"], ["a", "b"]]), 400, "", {}),
        "wrong type": (rows(1), 400, "", {}),
        "unknown model": (good, 404, "_no", {}),
        "unknown version": (good, 404, f"/versions/{2**40}", {}),
        "many texts": (columns(["a"] * 10_000), 413, "", {}),
        "zipped texts": (_zipped(b'"",'), 413, "", zipped),
        "zipped lists": (_zipped(b"[],"), 413, "", zipped),
    }

    def post(body, path, headers):
        url = f"{server.rest_url}/v1/models/{name}{path}:predict"
        if not isinstance(body, bytes):
            body = json.dumps(body)
        return requests.post(
            url, body, headers=headers, timeout=SECONDS
        ).status_code

    def abort():
        """Hangs up in the middle of a request."""
        url = urllib.parse.urlsplit(server.rest_url)
        head = f"POST /v1/models/{name}:predict HTTP/1.1\r\nHost: localhost\r\n"
        with socket.create_connection((url.hostname, url.port), SECONDS) as c:
            c.sendall(f"{head}Content-Length: 1000\r\n\r\nhalf of".encode())

    mistakes: Mistakes = {"REST: aborted": (abort, None)}
    for mistake, (body, status, *rest) in bodies.items():
        mistakes[f"REST: {mistake}"] = (
            functools.partial(post, body, *rest),
            status,
        )
    return mistakes


def _zipped(item):
    """Zips 25 million items of JSON."""
    zipper = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    block = item * 10**5
    parts = [zipper.compress(block) for _ in range(250)]
    return b"".join([*parts, zipper.flush()])


def over_grpc(
    server: LocalServer, name: str, signatures: Mapping[str, Any]
) -> Mistakes:
    """Mistakes over gRPC."""
    link = grpc_transport.Grpc(address.parse(server.grpc_url), name)
    inputs = signatures[DEFAULT_SIGNATURE].inputs

    def text(items, signature=DEFAULT_SIGNATURE, dtype=object):
        arrays = dict.fromkeys(inputs, np.array(items, dtype))
        return link.predict_request(arrays, signature)

    def ids(value, shape=None):
        names = signatures["from_token_ids"].inputs
        arrays = dict.fromkeys(names, np.full([2, 3], value, np.int32))
        request = link.predict_request(arrays, "from_token_ids")
        for proto in request[1].inputs.values():
            if shape is not None:  # without values
                proto.ClearField("tensor_content")
                proto.ClearField("int_val")
                for dim, size in zip(proto.tensor_shape.dim, shape):
                    dim.size = size
        return request

    invalid, exhausted = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"
    bodies = {
        "unknown signature": (text([b"a"], "no"), "FAILED_PRECONDITION"),
        "scalar text": (text(b"a"), invalid),
        "nested text": (text([[b"a"]]), invalid),
        "wrong type": (text([1], dtype=int), invalid),
        "missing input": (link.predict_request({}, DEFAULT_SIGNATURE), invalid),
        "many texts": (text([b"a"] * 10_000), exhausted),
        "100 MiB": (text([b"a" * 100 * 2**20]), exhausted),
    }
    if "from_token_ids" in signatures:
        bodies["huge ids"] = ids(2**30), invalid
        bodies["filled up"] = ids(1, (8192, 96)), exhausted
        bodies["no such shape"] = ids(1, (2**62, 2**62)), invalid
        bodies["negative shape"] = ids(1, (-1, 3)), invalid

    def send(request):
        try:
            link.send(request, SECONDS)
        except protocol.ServerError as error:
            return error.code
        return "OK"

    return {
        f"gRPC: {mistake}": (functools.partial(send, request), status)
        for mistake, (request, status) in bodies.items()
    }
