"""What the stand-in does with clients that no contract is about."""

import concurrent.futures
import contextlib
import gzip
import io
import json
import socket
import threading
import time

import grpc
import pytest
import requests
from waitress import wasyncore

from export import local_server, messages, serve
from export.stand_in import core, rest

GOOD = '{"instances": [1.0]}'
HEAD = "POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: {}\r\n\r\n"


@pytest.fixture(scope="module")
def server(half_plus):
    with local_server.running("m", half_plus) as running:
        yield running
    assert running.process.returncode == 0


def connect(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def post(server, body=GOOD, method="predict"):
    return requests.post(
        f"{server.rest_url}/v1/models/m:{method}", data=body, timeout=20
    )


def assert_answers(server):
    started = time.monotonic()
    response = post(server)
    assert response.json() == {"predictions": [3.5]}
    assert time.monotonic() - started < 5
    return response


def test_says_that_it_is_a_stand_in(server):
    assert assert_answers(server).headers["Server"] == serve.IDENT
    assert "a stand-in for it serves" in server.log()
    request = messages.get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "m"
    address = server.grpc_url.removeprefix("grpc://")
    with grpc.insecure_channel(address) as channel:
        models = messages.model_service_pb2_grpc.ModelServiceStub(channel)
        _, call = models.GetModelStatus.with_call(request, timeout=20)
    assert dict(call.initial_metadata())["x-served-by"] == serve.IDENT


def test_what_it_does_not_have(server):
    for method in ("classify", "regress"):
        response = post(server, method=method)
        assert response.status_code == 501
        assert method in response.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"inputs": ' + "[" * 99 + "]" * 99 + "}",
        '{"inputs": ' + "9" * 5000 + "}",
        '{"inputs": "\\ud800"}',
    ],
)
def test_json_that_python_cannot_hold(server, body):
    response = post(server, body)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert_answers(server)


def test_a_zipped_body_has_an_end(monkeypatch):
    monkeypatch.setattr(rest, "_MAX_UNZIPPED", 99)
    for size, expected in ((99, 99), (100, 0)):
        environ = {
            "wsgi.input": io.BytesIO(gzip.compress(b" " * size)),
            "HTTP_CONTENT_ENCODING": "gzip",
        }
        assert len(rest._body(environ)) == expected


def test_oversized_bodies_are_refused_before_they_are_read(server):
    with connect(server.rest_url) as client:
        client.sendall(HEAD.format(2**30).encode())
        assert client.recv(99).startswith(b"HTTP/1.1 413 ")
    with connect(server.rest_url) as client:
        client.sendall(b"GET /v1/models/m HTTP/1.1\r\nLong: " + b"x" * 2**18)
        assert client.recv(99).startswith(b"HTTP/1.0 431 ")
    assert_answers(server)


def test_slow_clients_hold_up_nobody(server):
    # More than there are threads, and than waitress takes by default.
    with contextlib.ExitStack() as stack:
        request = HEAD.format(len(GOOD)) + GOOD
        for number in range(150):
            client = stack.enter_context(connect(server.rest_url))
            client.sendall(request[: number % len(request)].encode())
        assert_answers(server)
        # The one that goes on slowly is answered in the end.
        with connect(server.rest_url) as client:
            for letter in request:
                client.sendall(letter.encode())
                time.sleep(0.01)
            assert client.recv(99).startswith(b"HTTP/1.1 200 ")


def test_silent_clients_are_cut_off(monkeypatch):
    monkeypatch.setattr(rest, "_IDLE_SECONDS", 1)
    monkeypatch.setattr(rest, "_LOOK_FOR_IDLE_SECONDS", 1)
    (port,) = local_server.free_ports(1)
    web = rest.create_server(core.Core(), "127.0.0.1", port, 1, serve.IDENT)
    thread = threading.Thread(target=web.run)
    thread.start()
    try:
        with connect(f"http://127.0.0.1:{port}") as client:
            client.sendall(HEAD.format(2).encode() + b"{")
            assert client.recv(99) == b""
    finally:
        web.trigger.pull_trigger(lambda: wasyncore.close_all(web._map))
        thread.join()
        web.task_dispatcher.shutdown()


def test_clients_that_hang_up_or_talk_nonsense(server):
    for sent in (b"", b"\0" * 99, HEAD.format(99).encode() + b"{"):
        with connect(server.rest_url) as client:
            client.sendall(sent)
    assert_answers(server)


def test_bad_neighbors(server):
    def ask(number):
        body = {"instances": [1.0 if number % 3 else "bad"]}
        return number, post(server, json.dumps(body))

    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        for number, response in pool.map(ask, range(43)):
            assert response.status_code == (200 if number % 3 else 400)
            if number % 3:
                assert response.json() == {"predictions": [3.5]}
