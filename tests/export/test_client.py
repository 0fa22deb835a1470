"""The client over both protocols, against one server."""

import contextlib
import inspect
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from export import address, client, grpc_transport, local_server

TEXTS = ["open the file", "", "é 西 σ", "read a line", "fox " * 19, "the dog"]


@pytest.fixture(params=["grpc_url", "rest_url"])
def connection(request, server, connect):
    url = getattr(server, request.param)
    with connect(url, "tiny", timeout=30) as opened:
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


def test_asks_all_servers_of_a_name(server, half_plus):
    with local_server.running("tiny", half_plus) as other:
        ports = [s.grpc_url.rpartition(":")[2] for s in (server, other)]
        names = ",".join(f"127.0.0.1:{port}" for port in ports)
        where = address.Address("grpc", f"ipv4:{names}")
        link = grpc_transport.Grpc(where, "tiny")
        with client.Client(link, 30) as connection:
            connection.wait_until_ready(30)
            deadline = time.monotonic() + 10
            versions = set()
            while versions != {2, 3} and time.monotonic() < deadline:
                versions.add(connection.version())
            assert versions == {2, 3}


def test_default_batch_is_what_the_server_takes():
    parameters = pathlib.Path("export/deploy/config/batching_parameters.txt")
    text = (pathlib.Path(__file__).parents[2] / parameters).read_text()
    batch_size = inspect.signature(client.Client.embed).parameters["batch_size"]
    assert f"max_batch_size {{ value: {batch_size.default} }}" in text
