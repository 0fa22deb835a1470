"""The client over both protocols, against one server."""

import socket

import numpy as np
import pytest

from export import client, local_server

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


def test_unknown_model(server):
    for url in (server.grpc_url, server.rest_url):
        with client.connect(url, "no") as connection:
            with pytest.raises(client.ServerError, match="model no"):
                connection.version()


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_server_that_is_away(scheme):
    (port,) = local_server.free_ports(1)
    url = f"{scheme}://127.0.0.1:{port}"
    with client.connect(url, "tiny") as connection:
        with pytest.raises(client.ServerError, match=str(port)):
            connection.version()
        with pytest.raises(client.ServerError):
            connection.wait_until_ready(0.2)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_deadline(scheme):
    # Connections are taken, and nothing is ever answered.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        with client.connect(url, "tiny", timeout=0.2) as connection:
            with pytest.raises(client.ServerError):
                connection.version()


@pytest.mark.parametrize("url", ["127.0.0.1:8500", "ftp://host:1", "grpc://"])
def test_refuses_other_urls(url):
    with pytest.raises(ValueError, match="`server` must be"):
        client.connect(url, "tiny")
