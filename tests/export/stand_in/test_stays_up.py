"""What the stand-in does with clients that no contract is about."""

import contextlib
import socket
import threading
import time
import zlib

import grpc
import psutil
import pytest
import requests
from google.protobuf import text_format
from waitress import wasyncore

from export import local_server, messages
from export.stand_in import IDENT, core, rest

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


def post(server, body=GOOD, **headers):
    url = f"{server.rest_url}/v1/models/m:predict"
    return requests.post(url, data=body, headers=headers, timeout=60)


def assert_answers(server):
    started = time.monotonic()
    response = post(server)
    assert response.json() == {"predictions": [3.5]}
    assert time.monotonic() - started < 5
    return response


def test_says_that_it_is_a_stand_in(server):
    assert assert_answers(server).headers["Server"] == IDENT
    assert "a stand-in for it serves" in server.log()
    request = messages.get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "m"
    address = server.grpc_url.removeprefix("grpc://")
    with grpc.insecure_channel(address) as channel:
        models = messages.model_service_pb2_grpc.ModelServiceStub(channel)
        _, call = models.GetModelStatus.with_call(request, timeout=20)
    assert dict(call.initial_metadata())["x-served-by"] == IDENT
    url = f"{server.rest_url}/v1/models/m:classify"
    assert requests.post(url, timeout=20).status_code == 501


@pytest.mark.parametrize(
    "body",
    [
        '{"inputs": ' + "[" * 99 + "]" * 99 + "}",
        '{"inputs": ' + "9" * 5000 + "}",
        b'{"inputs": "\xff"}',
    ],
)
def test_json_that_python_cannot_hold(server, body):
    response = post(server, body)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert_answers(server)


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 9",
        "HTTP/1.0\r\nContent-Length: 9\r\nTransfer-Encoding: chunked",
        "HTTP/1.1\r\nContent-Length: 9\r\nContent-Length: 8",
    ],
)
def test_two_lengths_of_one_body_are_refused(server, head):
    with connect(server.rest_url) as client:
        smuggled = "GET /v1/models/m HTTP/1.1\r\n\r\n"
        request = f"GET /v1/models/m {head}\r\n\r\n0\r\n\r\n{smuggled}"
        client.sendall(request.encode())
        answers = b"".join(iter(lambda: client.recv(2**16), b""))
    assert answers.split()[1] == b"400"
    assert answers.count(b"HTTP/1.") == 1


def test_oversized_bodies_are_refused_before_they_are_read(server):
    limit = core.Limits().max_request_bytes
    for head, status in (
        (HEAD.format(limit + 1), b"413"),
        ("GET /v1/models/m HTTP/1.1\r\nLong: " + "x" * 2**18, b"431"),
    ):
        with connect(server.rest_url) as client:
            client.sendall(head.encode())
            assert client.recv(99).split()[1] == status
    assert_answers(server)


def zipped(text, count):
    """Zips `{"instances": [text, text, ...]}` without holding it."""
    zipper = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    blocks = [zipper.compress(b'{"instances": [')]
    blocks += [zipper.compress(text * 2**16) for _ in range(count // 2**16)]
    return b"".join([*blocks, zipper.compress(b"1]}"), zipper.flush()])


def resident(server):
    return psutil.Process(server.process.pid).memory_info().rss


@contextlib.contextmanager
def bounded_memory(server, mebibytes):
    """Fails if the server takes more on the way, or keeps half of that."""
    done, most, before = threading.Event(), [0], resident(server)

    def watch():
        while not done.wait(0.01):
            most[0] = max(most[0], resident(server))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    assert most[0] - before < mebibytes * 2**20
    deadline = time.monotonic() + 20
    while resident(server) - before > mebibytes * 2**19:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert_answers(server)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b'"",', 25 * 10**6),  # too many bytes
        (b"{},", 5 * 10**6),  # values
        (b"1,", 2**18),  # numbers
    ],
)
def test_zipped_bodies_are_bounded(server, text, count):
    body = zipped(text, count)
    with bounded_memory(server, 200):
        response = post(server, body, **{"Content-Encoding": "gzip"})
        assert response.status_code == 413
        assert "--max_request_" in response.json()["error"]


def tensor(dtype, values, *shape):
    dims = " ".join(f"dim {{ size: {size} }}" for size in shape)
    return f"dtype: {dtype} tensor_shape {{ {dims} }} {values}"


def predict(server, text, **options):
    request = text_format.Parse(
        f'model_spec {{ name: "m" }} inputs {{ key: "x" value {{ {text} }} }}',
        messages.predict_pb2.PredictRequest(),
    )
    address = server.grpc_url.removeprefix("grpc://")
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options=unlimited) as channel:
        stub = messages.prediction_service_pb2_grpc.PredictionServiceStub
        try:
            stub(channel).Predict(request, timeout=60, **options)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


HOSTILE_TENSORS = {
    "8192 x 96": tensor("DT_FLOAT", "", 8192, 96),
    "many texts": tensor("DT_STRING", 'string_val: "a"', 2**20),
    "2^60 texts": tensor("DT_STRING", "", 2**30, 2**30),
    "axes that are huge": tensor("DT_FLOAT", "", *[2**62] * 10**4),
    "a size of many bytes": tensor(
        "DT_STRING", 'tensor_content: "%s"' % (r"\377" * 2**16), 1
    ),
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_messages_are_bounded(server, name):
    with bounded_memory(server, 200):
        status = predict(server, HOSTILE_TENSORS[name])
    many = name in ("8192 x 96", "many texts")
    assert status == ("RESOURCE_EXHAUSTED" if many else "INVALID_ARGUMENT")


def test_refused_messages_are_not_kept(server):
    many = b"\x0a\x03\x0a\x01m" + b"\x1a\x00" * (7 * 2**20)  # output_filter
    address = server.grpc_url.removeprefix("grpc://")
    with (
        bounded_memory(server, 400),
        grpc.insecure_channel(address) as channel,
        pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"),
    ):
        channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(
            many, timeout=60
        )


def test_message_bytes_are_bounded(server):
    with bounded_memory(server, 400):
        text = tensor("DT_STRING", f'string_val: "{"a" * 2**25}"', 1)
        status = predict(server, text, compression=grpc.Compression.Gzip)
    assert status == "RESOURCE_EXHAUSTED"


def test_idle_and_slow_clients_hold_up_nobody(server):
    # More than there are threads, and than waitress takes by default.
    with contextlib.ExitStack() as stack:
        request = HEAD.format(len(GOOD)) + GOOD
        for number in range(300):
            client = stack.enter_context(connect(server.rest_url))
            client.sendall(request[: number % len(request)].encode())
        assert_answers(server)
        # The one that goes on slowly is answered in the end.
        for letter in request[number % len(request) :]:
            client.sendall(letter.encode())
            time.sleep(0.01)
        assert client.recv(99).startswith(b"HTTP/1.1 200 ")


def test_silent_clients_are_cut_off(monkeypatch):
    monkeypatch.setattr(rest, "_IDLE_SECONDS", 1)
    monkeypatch.setattr(rest, "_LOOK_FOR_IDLE_SECONDS", 1)
    (port,) = local_server.free_ports(1)
    web = rest.create_server(core.Core(), "127.0.0.1", port, 1)
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
