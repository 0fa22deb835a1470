"""The client over both protocols, against one server."""

import concurrent.futures
import contextlib
import http.server
import inspect
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
import requests

from export import client, local_server, messages, transport

TEXTS = ["open the file", "", "é 西 σ", "read a line", "fox " * 19, "the dog"]


@pytest.fixture(params=["grpc_url", "rest_url"])
def connection(request, server):
    url = getattr(server, request.param)
    with client.connect(url, "tiny", timeout=30) as opened:
        yield opened


@pytest.mark.parametrize(
    ("kind", "prefix"), [(None, ""), ("query", "query: "), ("other", "")]
)
def test_embeds_in_order(connection, embedder, kind, prefix):
    done = []
    embeddings = connection.embed(
        TEXTS, kind, batch_size=4, on_batch=done.append
    )
    inputs = embedder.preprocessor([prefix + text for text in TEXTS])
    np.testing.assert_allclose(embeddings, embedder(inputs), atol=1e-5)
    assert embeddings.dtype == np.float32
    assert done == [4, 2]
    assert connection.requests == 2


def test_predicts_numbers_and_bytes(connection, embedder):
    inputs = {
        "token_ids": np.array([[2, 7, 3]], np.int32),
        "padding_mask": np.ones([1, 3], np.int32),
        "segment_ids": np.zeros([1, 3], np.int32),
    }
    answer = connection.predict(inputs, "from_token_ids")
    np.testing.assert_allclose(answer["embedding"], embedder(inputs), atol=1e-5)
    # Bytes that are no text travel too; the tokenizer drops them.
    texts = np.array([b"the \xff dog", b"the dog"], object)
    first, second = connection.predict({"text": texts})["embedding"]
    np.testing.assert_allclose(first, second, atol=1e-6)


def test_describes_the_model(connection):
    assert connection.version() == 3
    assert set(connection.signatures()) >= {"query", "document"}


def test_errors(connection):
    with pytest.raises(ValueError, match="`signature` 'no' is not served"):
        connection.predict({"text": np.array(["a"])}, "no")
    with pytest.raises(client.ServerError, match="compatible with expected"):
        connection.predict({"text": np.array([["a"]])})
    with pytest.raises(ValueError, match="`texts` is empty"):
        connection.embed([])
    assert connection.requests == 0


def test_predicts_in_batches(connection):
    whole = connection.predict({"text": np.array(TEXTS)})["embedding"]
    done = []
    parts = connection.predict(
        {"text": np.array(TEXTS)}, batch_size=4, on_batch=done.append
    )["embedding"]
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    assert done == [4, 2]
    empty = np.array([], object)
    answer = connection.predict({"text": empty}, batch_size=4)["embedding"]
    assert answer.shape == (0, whole.shape[1])


def test_batches_that_cannot_be(connection):
    ids = {
        "token_ids": np.ones([2, 3], np.int32),
        "padding_mask": np.ones([2, 3], np.int32),
        "segment_ids": np.zeros([1, 3], np.int32),
    }
    with pytest.raises(ValueError, match="as many rows each"):
        connection.predict(ids, "from_token_ids", batch_size=2)
    with pytest.raises(ValueError, match="as many rows each"):
        connection.predict({"text": np.array("a")}, batch_size=2)
    with pytest.raises(ValueError, match="`batch_size` must be positive"):
        connection.predict({"text": np.array(["a"])}, batch_size=0)


def test_rest_loses_no_digit(server):
    answers = []
    for url in (server.grpc_url, server.rest_url):
        with client.connect(url, "tiny") as connection:
            answers.append(connection.embed(TEXTS))
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_asks_a_version_or_a_label(server, protocol):
    url = getattr(server, protocol)

    def connect(**version):
        return client.connect(url, "tiny", timeout=30, **version)

    with connect(version=3) as third:
        assert third.version() == 3
        third.embed(TEXTS)
    with (
        connect(version=5) as absent,
        pytest.raises(client.ServerError, match="5") as caught,
    ):
        absent.embed(TEXTS)
    assert caught.value.code == "NOT_FOUND"
    with (
        connect(label="canary") as labeled,
        pytest.raises(client.ServerError, match="canary") as caught,
    ):
        labeled.embed(TEXTS)
    assert caught.value.code == "INVALID_ARGUMENT"
    with pytest.raises(ValueError, match="either `version` or `label`"):
        connect(version=3, label="canary")


def test_unknown_model(server):
    for url in (server.grpc_url, server.rest_url):
        with client.connect(url, "no") as connection:
            with pytest.raises(client.ServerError, match="Latest.no."):
                connection.version()


@contextlib.contextmanager
def rest_front(server, refusals):
    """Refuses with the statuses in the list, then passes requests on."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if refusals:
                status, content = refusals.pop(0), b'{"error": "not now"}'
            else:
                answer = requests.get(server.rest_url + self.path, timeout=30)
                status, content = answer.status_code, answer.content
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as front:
        thread = threading.Thread(target=front.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{front.server_port}"
        finally:
            front.shutdown()
            thread.join()


@contextlib.contextmanager
def grpc_front(server, refusals, port=0):
    """Refuses with the codes in the list, then passes requests on."""
    services = messages.prediction_service_pb2_grpc
    address = server.grpc_url.removeprefix("grpc://")

    class Service(services.PredictionServiceServicer):
        def GetModelMetadata(self, request, context):
            if refusals:
                context.abort(refusals.pop(0), "not now")
            with grpc.insecure_channel(address) as channel:
                stub = services.PredictionServiceStub(channel)
                return stub.GetModelMetadata(request)

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        front = grpc.server(executor)
        services.add_PredictionServiceServicer_to_server(Service(), front)
        port = front.add_insecure_port(f"127.0.0.1:{port}")
        front.start()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            front.stop(None).wait()


REFUSALS = {
    rest_front: {"full": 503, "many": 429, "bad": 400, "late": 504},
    grpc_front: {
        "full": grpc.StatusCode.UNAVAILABLE,
        "many": grpc.StatusCode.RESOURCE_EXHAUSTED,
        "bad": grpc.StatusCode.INVALID_ARGUMENT,
        "late": grpc.StatusCode.DEADLINE_EXCEEDED,
    },
}


@pytest.mark.parametrize("front", [rest_front, grpc_front])
def test_asks_again_what_may_pass(front, server):
    refusals = [REFUSALS[front][name] for name in ("full", "many", "full")]
    with front(server, refusals) as url, client.connect(url, "tiny") as tried:
        assert "query" in tried.signatures()
    assert not refusals


@pytest.mark.parametrize("front", [rest_front, grpc_front])
@pytest.mark.parametrize(
    ("name", "code"),
    [("bad", "INVALID_ARGUMENT"), ("late", "DEADLINE_EXCEEDED")],
)
def test_asks_once_what_stays_wrong(front, name, code, server):
    refusals = [REFUSALS[front][name]] * 2
    with front(server, refusals) as url, client.connect(url, "tiny") as tried:
        with pytest.raises(client.ServerError, match="not now") as caught:
            tried.signatures()
    assert caught.value.code == code
    assert len(refusals) == 1


@pytest.mark.parametrize("front", [rest_front, grpc_front])
def test_asks_again_until_the_deadline(front, server):
    refusals = [REFUSALS[front]["full"]] * 1000
    with (
        front(server, refusals) as url,
        client.connect(url, "tiny", timeout=0.5) as tried,
    ):
        start = time.monotonic()
        with pytest.raises(client.ServerError, match="not now") as caught:
            tried.signatures()
        assert time.monotonic() - start < 1
    assert caught.value.code == "UNAVAILABLE"
    assert 1 < 1000 - len(refusals) < 100  # it pauses in between


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_server_that_is_away(scheme):
    (port,) = local_server.free_ports(1)
    url = f"{scheme}://127.0.0.1:{port}"
    with client.connect(url, "tiny", timeout=0.5) as connection:
        for ask in (connection.version, connection.signatures):
            with pytest.raises(client.ServerError, match=str(port)) as caught:
                ask()
            assert caught.value.code == "UNAVAILABLE"
        with pytest.raises(client.ServerError):
            connection.wait_until_ready(0.2)


def test_finds_a_server_soon_after_it_starts(server):
    (port,) = local_server.free_ports(1)
    url = f"grpc://127.0.0.1:{port}"
    with client.connect(url, "tiny", timeout=1) as connection:
        # By default gRPC would now look again after more than a second.
        with pytest.raises(client.ServerError):
            connection.wait_until_ready(1.3)
        with grpc_front(server, [], port):
            assert "query" in connection.signatures()


@contextlib.contextmanager
def started(base_path, port, rest_port):
    """A server on these ports, which may not be ready yet."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "export.serve", "--model_name", "tiny"),
            *("--model_base_path", str(base_path)),
            *("--port", str(port), "--rest_api_port", str(rest_port)),
        ],
        cwd=pathlib.Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_outlives_its_server(base_path):
    port, rest_port = local_server.free_ports(2)
    with (
        client.connect(f"grpc://127.0.0.1:{port}", "tiny") as first,
        client.connect(f"http://127.0.0.1:{rest_port}", "tiny") as second,
    ):
        with started(base_path, port, rest_port):
            before = first.embed(TEXTS)
            second.embed(TEXTS)
        with started(base_path, port, rest_port):
            for connection in (second, first):
                after = connection.embed(TEXTS)
                np.testing.assert_allclose(after, before, atol=1e-6)


def test_asks_all_servers_of_a_name(server, base_path, tmp_path):
    shutil.copytree(base_path / "3", tmp_path / "tiny" / "5")
    with local_server.running("tiny", tmp_path / "tiny") as other:
        ports = [s.grpc_url.rpartition(":")[2] for s in (server, other)]
        address = ",".join(f"127.0.0.1:{port}" for port in ports)
        link = transport.Grpc(f"ipv4:{address}", "tiny")
        with client.Client("tiny", link, 30) as connection:
            connection.wait_until_ready(30)
            deadline = time.monotonic() + 10
            versions = set()
            while versions != {3, 5} and time.monotonic() < deadline:
                versions.add(connection.version())
            assert versions == {3, 5}


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_deadline(scheme):
    # Connections are taken, and nothing is ever answered.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        with client.connect(url, "tiny", timeout=0.2) as connection:
            with pytest.raises(client.ServerError):
                connection.version()


def test_deadline_of_an_answer_that_trickles():
    def trickle(listening):
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(300):  # three seconds
                connection.sendall(b" ")
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=trickle, args=[listening])
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with client.connect(url, "tiny", timeout=0.3) as connection:
            start = time.monotonic()
            with pytest.raises(client.ServerError) as caught:
                connection.signatures()
            assert time.monotonic() - start < 1
        thread.join()
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_json_has_no_nan():
    link = transport.Rest("127.0.0.1:1", "tiny")
    with pytest.raises(ValueError, match="not JSON compliant"):
        link.predict({"x": np.array([np.nan])}, "any", None, 1)
    link.close()


def test_default_batch_is_what_the_server_takes():
    parameters = pathlib.Path("export/deploy/config/batching_parameters.txt")
    text = (pathlib.Path(__file__).parents[2] / parameters).read_text()
    batch_size = inspect.signature(client.Client.embed).parameters["batch_size"]
    assert f"max_batch_size {{ value: {batch_size.default} }}" in text


@pytest.mark.parametrize("url", ["127.0.0.1:8500", "ftp://host:1", "grpc://"])
def test_refuses_other_urls(url):
    with pytest.raises(ValueError, match="`server` must be"):
        client.connect(url, "tiny")
