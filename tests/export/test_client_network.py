"""The clients behind proxies and TLS, and in front of servers that fail."""

import asyncio
import concurrent.futures
import gzip
import inspect
import threading
import time

import grpc
import numpy as np
import pytest

from export import client, local_server
from tests.export.fronts import (
    counting_front,
    grpc_front,
    raw_front,
    rest_front,
)

FRONTS = {rest_front: "http", grpc_front: "grpc"}
TEXTS = ["open the file", "the dog", "é 西 σ"]


@pytest.fixture(scope="module")
def embeddings(server):
    with client.connect(server.grpc_url, "tiny") as connection:
        return connection.embed(TEXTS)


@pytest.mark.parametrize(
    ("front", "refusals"),
    [
        (rest_front, [503, 429, 503]),
        (rest_front, [502, 504, 503]),  # a proxy's
        (grpc_front, ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]),
    ],
)
def test_asks_again_what_may_pass(front, refusals, server, embeddings, connect):
    left = list(refusals)
    with front(server, left) as opened, connect(opened.url, "tiny") as tried:
        np.testing.assert_array_equal(tried.embed(TEXTS), embeddings)
    assert not left


@pytest.mark.parametrize(
    ("front", "refusal", "code"),
    [
        (rest_front, 502, "UNAVAILABLE"),
        (rest_front, 503, "UNAVAILABLE"),
        (rest_front, 504, "DEADLINE_EXCEEDED"),
        (grpc_front, "UNAVAILABLE", "UNAVAILABLE"),
    ],
)
def test_asks_again_until_the_deadline(front, refusal, code, server, connect):
    refusals = [refusal] * 1000
    with (
        front(server, refusals) as opened,
        connect(opened.url, "tiny") as tried,
    ):
        start = time.monotonic()
        with pytest.raises(client.ServerError, match="not now") as caught:
            tried.signatures(timeout=0.5)
        assert time.monotonic() - start < 1
    assert caught.value.code == code
    assert 1 < 1000 - len(refusals) < 100  # it pauses in between


@pytest.mark.parametrize(
    ("front", "refusal", "code"),
    [
        (rest_front, 400, "INVALID_ARGUMENT"),
        (rest_front, 413, "RESOURCE_EXHAUSTED"),
        (rest_front, 401, "UNAUTHENTICATED"),
        (rest_front, 500, "UNKNOWN"),
        (grpc_front, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        (grpc_front, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
    ],
)
def test_asks_once_what_stays_wrong(front, refusal, code, server, connect):
    refusals = [refusal] * 2
    with front(server, refusals) as opened, connect(opened.url, "tiny") as c:
        with pytest.raises(client.ServerError, match="not now") as caught:
            c.signatures()
    assert caught.value.code == code
    assert not caught.value.temporary
    assert len(refusals) == 1


def test_asks_once_what_is_too_large(server, connect):
    refusals = ["RESOURCE_EXHAUSTED"] * 2
    message = "Received message larger than max (5 vs. 4)"
    with (
        grpc_front(server, refusals, message=message) as opened,
        connect(opened.url, "tiny") as tried,
        pytest.raises(client.ServerError, match="larger than max"),
    ):
        tried.signatures()
    assert len(refusals) == 1


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_server_that_is_away(scheme, connect):
    (port,) = local_server.free_ports(1)
    url = f"{scheme}://127.0.0.1:{port}"
    with connect(url, "tiny", timeout=0.5) as connection:
        for ask in (connection.version, connection.signatures):
            with pytest.raises(client.ServerError, match=str(port)) as caught:
                ask()
            assert caught.value.code == "UNAVAILABLE"
        with pytest.raises(client.ServerError):
            connection.wait_until_ready(0.2)


def test_finds_a_server_soon_after_it_starts(server, connect):
    (port,) = local_server.free_ports(1)
    url = f"grpc://127.0.0.1:{port}"
    with connect(url, "tiny", timeout=1) as connection:
        # By default gRPC would now look again after more than a second.
        with pytest.raises(client.ServerError):
            connection.wait_until_ready(1.3)
        with grpc_front(server, port=port):
            assert "query" in connection.signatures()


@pytest.mark.parametrize("scheme", ["grpc", "http", "grpcs", "https"])
def test_deadline(scheme, connect):
    # Connections are taken, and nothing is ever answered.
    ended = threading.Event()
    with raw_front(lambda _: ended.wait(10)) as port:
        url = f"{scheme}://127.0.0.1:{port}"
        with connect(url, "tiny") as connection:
            start = time.monotonic()
            with pytest.raises(client.ServerError):
                connection.version(timeout=0.2)
            with pytest.raises(client.ServerError):
                connection.embed(TEXTS, timeout=0.2)
            assert time.monotonic() - start < 2
        ended.set()


@pytest.mark.parametrize(
    ("head", "trickle"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
        (b"", b"HTTP/1.1 200 OK\r\nServer: " + b"s" * 300),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"         ."),  # then it stalls
    ],
)
def test_deadline_of_an_answer_that_trickles(head, trickle, connect):
    def serve(connection):
        connection.sendall(head)
        for i in range(300):  # three seconds
            if b"." not in trickle or i < 25:
                connection.sendall(trickle[i % len(trickle) :][:1])
            elif connection.recv(1) == b"":
                break
            time.sleep(0.01)

    def serve_after_the_request(connection):
        connection.recv(2**16)
        serve(connection)

    with raw_front(serve_after_the_request) as port:
        url = f"http://127.0.0.1:{port}"
        with connect(url, "tiny", timeout=0.3) as connection:
            start = time.monotonic()
            with pytest.raises(client.ServerError) as caught:
                connection.signatures()
            assert time.monotonic() - start < 0.5
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_the_question_for_signatures_counts(server, connect):
    late = [504] * 1000
    with rest_front(server, late) as front:
        with connect(front.url, "tiny") as connection:
            start = time.monotonic()
            with pytest.raises(client.ServerError):
                connection.predict({"text": TEXTS}, timeout=0.3)
            assert time.monotonic() - start < 0.5


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_deadlines_that_are_none(server, timeout, connect):
    with pytest.raises(ValueError, match="`timeout` must be a positive"):
        connect(server.rest_url, "tiny", timeout=timeout)
    with connect(server.rest_url, "tiny") as connection:
        with pytest.raises(ValueError, match="`timeout` must be a positive"):
            connection.predict({"text": TEXTS}, timeout=timeout)


@pytest.mark.parametrize("front", FRONTS)
def test_headers(front, server, embeddings, connect):
    headers = {"Authorization": "Bearer a.b-c", "X-Tenant": "é".encode().hex()}
    with (
        front(server) as opened,
        connect(opened.url, "tiny", headers=headers) as connection,
    ):
        np.testing.assert_array_equal(connection.embed(TEXTS), embeddings)
    assert len(opened.seen) == 2  # metadata and predict
    for seen in opened.seen:
        received = seen if front is grpc_front else seen[2]
        assert received["authorization"] == "Bearer a.b-c"
        assert received["x-tenant"] == "c3a9"


def test_path_prefix(server, embeddings, connect):
    with rest_front(server, prefix="/a;b/c%2Fd") as front:
        for url in (front.url, f"{front.url}/"):
            with connect(url, "tiny", version=3) as connection:
                answer = connection.embed(TEXTS)
                np.testing.assert_array_equal(answer, embeddings)
    assert {path for _, path, _, _ in front.seen} == {
        f"/a;b/c%2Fd/v1/models/tiny/versions/3{method}"
        for method in ("/metadata", ":predict")
    }


def test_names_are_quoted(server, connect):
    with rest_front(server) as front:
        with connect(front.url, "a/b:c é", label="x?#") as connection:
            with pytest.raises(client.ServerError, match=r"label: x\?#"):
                connection.version()
    ((_, path, _, _),) = front.seen
    assert path == "/v1/models/a%2Fb%3Ac%20%C3%A9/labels/x%3F%23/metadata"


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_redirects_are_errors(server, status, connect):
    def redirect(_, headers, content):
        if front.seen[-1][0] == "GET":
            return 200, headers, content
        location = {"Location": f"{server.rest_url}{front.seen[-1][1]}"}
        return status, location, b""

    with rest_front(server, answer=redirect) as front:
        with connect(front.url, "tiny") as connection:
            with pytest.raises(
                client.ServerError,
                match=f"answered {status}, a redirect to {server.rest_url}",
            ):
                connection.embed(TEXTS)
    assert [method for method, *_ in front.seen] == ["GET", "POST"]


@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_gzip_of_requests(server, embeddings, protocol, connect):
    texts = [*TEXTS, "fox " * 5000]
    received = []
    for compress in (False, True):
        with counting_front(getattr(server, protocol)) as (url, counts):
            with connect(url, "tiny", gzip=compress) as connection:
                answer = connection.embed(texts)
                np.testing.assert_allclose(answer[:3], embeddings, atol=1e-6)
        received.append(sum(counts))
    assert received[0] > 20_000
    assert received[1] < 5_000


def test_gzip_of_answers(server, embeddings, connect):
    def zipped(status, headers, content):
        assert front.seen[-1][2]["Accept-Encoding"] == "gzip"
        headers = {"Content-Encoding": "GZip"}
        return status, headers, gzip.compress(content)

    with rest_front(server, answer=zipped) as front:
        with connect(front.url, "tiny") as connection:
            np.testing.assert_array_equal(connection.embed(TEXTS), embeddings)
        with connect(front.url, "no") as connection:
            with pytest.raises(client.ServerError, match="Latest.no."):
                connection.version()
    with grpc_front(server, compression=grpc.Compression.Gzip) as front:
        with connect(front.url, "tiny") as connection:
            np.testing.assert_array_equal(connection.embed(TEXTS), embeddings)


def test_threads_keep_their_connections(server, embeddings):
    threads, rounds = 32, 4
    started = threading.Barrier(threads)

    def ask(_):
        started.wait(10)
        return connection.embed(TEXTS)

    with rest_front(server) as front:
        with client.connect(front.url, "tiny") as connection:
            connection.signatures()
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                for answer in pool.map(ask, range(threads * rounds)):
                    np.testing.assert_allclose(answer, embeddings, atol=1e-6)
    assert len(front.seen) == 1 + threads * rounds
    assert front.connections <= threads


@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_tasks_ask_at_once(server, embeddings, protocol):
    async def ask():
        url = getattr(server, protocol)
        async with client.connect_async(url, "tiny") as connection:
            await connection.wait_until_ready(5)
            answers = await asyncio.gather(
                *(connection.embed(TEXTS) for _ in range(32)),
                connection.embed(TEXTS * 20, batch_size=2, concurrency=7),
            )
            assert connection.requests == 32 + 30
        return answers

    *answers, long = asyncio.run(ask())
    for answer in answers:
        np.testing.assert_allclose(answer, embeddings, atol=1e-6)
    np.testing.assert_allclose(long, np.tile(embeddings, [20, 1]), atol=1e-6)


def test_a_failed_batch_cancels_the_others(server):
    async def ask():
        start = time.monotonic()
        async with client.connect_async(front.url, "tiny") as connection:
            with pytest.raises(client.ServerError, match="not now"):
                await connection.embed(TEXTS * 9, batch_size=1, concurrency=3)
        assert time.monotonic() - start < 5

    def refuse_later(status, headers, content):
        if len(front.seen) >= 4:
            return 400, {}, b'{"error": "not now"}'
        return status, headers, content

    with rest_front(server, answer=refuse_later) as front:
        asyncio.run(ask())
    assert len(front.seen) < 10


@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_no_proxy_of_the_environment(server, protocol, connect, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with connect(getattr(server, protocol), "tiny") as connection:
        assert connection.version(timeout=5) == 3


@pytest.mark.parametrize("front", FRONTS)
def test_tls(front, server, embeddings, certificates, connect):
    tls = getattr(certificates, FRONTS[front])()
    with front(server, tls=tls) as opened:
        assert opened.url.startswith(f"{FRONTS[front]}s://")
        with connect(opened.url, "tiny", ca=certificates.ca) as connection:
            np.testing.assert_array_equal(connection.embed(TEXTS), embeddings)
        # Authorities that did not sign it; none is asked twice.
        for ca in (certificates.other_ca, None):
            with connect(opened.url, "tiny", ca=ca) as connection:
                start = time.monotonic()
                with pytest.raises(
                    client.ServerError, match="CERTIFICATE_VERIFY_FAILED"
                ) as caught:
                    connection.signatures()
                assert time.monotonic() - start < 5
                assert not caught.value.temporary


@pytest.mark.parametrize("front", FRONTS)
def test_system_authorities(front, server, certificates, connect, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    tls = getattr(certificates, FRONTS[front])()
    with front(server, tls=tls) as opened:
        with connect(opened.url, "tiny") as connection:
            assert connection.version() == 3


@pytest.mark.parametrize("one_file", [False, True])
@pytest.mark.parametrize("front", FRONTS)
def test_mutual_tls(front, one_file, server, certificates, connect, tmp_path):
    pair = {"certificate": certificates.client, "key": certificates.client_key}
    if one_file:
        both = [path.read_bytes() for path in pair.values()]
        pair = {"certificate": tmp_path / "both.pem"}
        pair["certificate"].write_bytes(b"".join(both))
    tls = getattr(certificates, FRONTS[front])(mutual=True)
    with front(server, tls=tls) as opened:
        ca = {"ca": certificates.ca}
        with connect(opened.url, "tiny", **ca, **pair) as connection:
            assert connection.version() == 3
        with connect(opened.url, "tiny", **ca) as connection:
            with pytest.raises(client.ServerError):
                connection.version(timeout=2)


def test_both_clients_have_the_same_methods():
    for name, method in inspect.getmembers(client.Client, inspect.isfunction):
        if not name.startswith("_"):
            other = getattr(client.AsyncClient, name)
            parameters, others = (
                [*inspect.signature(function).parameters]
                for function in (method, other)
            )
            assert parameters == others
            assert inspect.iscoroutinefunction(other)
