"""The clients over both protocols, behind proxies and TLS, and in front of
servers that fail."""

import asyncio
import concurrent.futures
import contextlib
import gzip
import threading
import time

import numpy as np
import pytest

from export import address, client, grpc_transport, local_server
from tests.export.fronts import (
    FRONTS,
    counting_front,
    grpc_front,
    raw_front,
    rest_front,
)

TEXTS = ["open the file", "", "é 西 σ", "read a line", "fox " * 19, "the dog"]


@pytest.fixture(params=FRONTS)
def scheme(request):
    return request.param


@pytest.fixture
def url(server, scheme):
    return server.grpc_url if scheme == "grpc" else server.rest_url


@pytest.fixture
def connection(url, connect):
    with connect(url, "tiny", timeout=30) as opened:
        yield opened


@pytest.fixture(scope="module")
def embeddings(server):
    with client.connect(server.grpc_url, "tiny") as connection:
        return connection.embed(TEXTS)


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


def test_describes_the_model_and_says_what_is_wrong(connection):
    assert connection.version() == 3
    assert set(connection.signatures()) >= {"query", "document"}
    with pytest.raises(ValueError, match="`signature` 'no' is not served"):
        connection.predict({"text": np.array(["a"])}, "no")
    with pytest.raises(client.ServerError, match="compatible with expected"):
        connection.predict({"text": np.array([["a"]])})


def test_asks_a_version_or_a_label(url):
    def connect(**version):
        return client.connect(url, "tiny", timeout=30, **version)

    with connect(version=3) as third:
        assert third.version() == 3
    for chosen, code in (
        ({"version": 5}, "NOT_FOUND"),
        ({"label": "canary"}, "INVALID_ARGUMENT"),
    ):
        with (
            connect(**chosen) as absent,
            pytest.raises(client.ServerError, match="5|canary") as caught,
        ):
            absent.embed(TEXTS)
        assert caught.value.code == code
    with pytest.raises(ValueError, match="either `version` or `label`"):
        connect(version=3, label="canary")


def test_finds_a_server_that_starts_again(server, scheme):
    (port,) = local_server.free_ports(1)
    url = f"{scheme}://127.0.0.1:{port}"
    with client.connect(url, "tiny", timeout=1) as connection:
        # By default gRPC would look again only a second later.
        with pytest.raises(client.ServerError, match=str(port)) as caught:
            connection.wait_until_ready(1.3 if scheme == "grpc" else 0.1)
        assert caught.value.code == "UNAVAILABLE"
        for _ in range(2):
            with FRONTS[scheme](server, port=port):
                assert connection.embed(TEXTS).any()


def test_asks_all_servers_of_a_name(server):
    def answer(response):
        response.model_spec.version.value = 9
        return response

    with grpc_front(server, answer=answer) as other:
        ports = [s.rpartition(":")[2] for s in (server.grpc_url, other.url)]
        names = ",".join(f"127.0.0.1:{port}" for port in ports)
        where = address.Address("grpc", f"ipv4:{names}")
        link = grpc_transport.Grpc(where, "tiny")
        with client.Client(link, 30) as connection:
            deadline = time.monotonic() + 10
            versions = set()
            while versions != {3, 9} and time.monotonic() < deadline:
                versions.add(connection.version())
            assert versions == {3, 9}


@pytest.mark.parametrize(
    ("scheme", "refusals"),
    [
        ("http", [503, 429, 503]),
        ("http", [502, 504, 503]),  # a proxy's
        ("grpc", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]),
    ],
)
def test_asks_again(scheme, refusals, server, embeddings, connect):
    left = list(refusals)
    with (
        FRONTS[scheme](server, left) as front,
        connect(front.url, "tiny") as tried,
    ):
        np.testing.assert_array_equal(tried.embed(TEXTS), embeddings)
    assert not left


@pytest.mark.parametrize(
    ("scheme", "refusal", "code", "again"),
    [
        ("http", 504, "DEADLINE_EXCEEDED", True),
        ("grpc", "UNAVAILABLE", "UNAVAILABLE", True),
        ("http", 400, "INVALID_ARGUMENT", False),
        ("http", 413, "RESOURCE_EXHAUSTED", False),
        ("http", 500, "UNKNOWN", False),
        ("grpc", "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", False),
    ],
)
def test_gives_up(scheme, refusal, code, again, server, connect):
    refusals = [refusal] * 1000
    with (
        FRONTS[scheme](server, refusals) as front,
        connect(front.url, "tiny") as tried,
    ):
        start = time.monotonic()
        with pytest.raises(client.ServerError, match="not now") as caught:
            tried.predict({"text": TEXTS}, timeout=0.4)
        assert time.monotonic() - start < 0.8
    assert caught.value.code == code
    # It pauses in between.
    assert 1000 - len(refusals) in (range(2, 100) if again else [1])


def test_asks_once_what_is_too_large(server, connect):
    refusals = ["RESOURCE_EXHAUSTED"] * 2
    message = "Received message larger than max (5 vs. 4)"
    with (
        grpc_front(server, refusals, message=message) as front,
        connect(front.url, "tiny") as tried,
        pytest.raises(client.ServerError, match="larger than max"),
    ):
        tried.signatures()
    assert len(refusals) == 1


@pytest.mark.parametrize("scheme", ["grpc", "https"])
def test_deadline(scheme, connect):
    # Connections are taken, and nothing is ever answered.
    ended = threading.Event()
    with raw_front(lambda _: ended.wait(10)) as port:
        with connect(f"{scheme}://127.0.0.1:{port}", "tiny") as connection:
            start = time.monotonic()
            with pytest.raises(client.ServerError):
                connection.embed(TEXTS, timeout=0.2)
            assert time.monotonic() - start < 1
        ended.set()


def test_deadline_of_an_answer_that_trickles(connect):
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 300

    def serve(connection):
        connection.recv(2**16)
        for byte in answer:  # three seconds
            connection.sendall(bytes([byte]))
            time.sleep(0.01)

    with raw_front(serve) as port:
        url = f"http://127.0.0.1:{port}"
        with connect(url, "tiny", timeout=0.4) as connection:
            start = time.monotonic()
            with pytest.raises(client.ServerError) as caught:
                connection.signatures()
            assert time.monotonic() - start < 0.8
    assert caught.value.code == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("timeout", [0, float("nan")])
def test_deadlines_that_are_none(server, timeout):
    with pytest.raises(ValueError, match="`timeout` must be a positive"):
        client.connect(server.rest_url, "tiny", timeout=timeout)
    with client.connect(server.rest_url, "tiny") as connection:
        with pytest.raises(ValueError, match="`timeout` must be a positive"):
            connection.predict({"text": TEXTS}, timeout=timeout)


def test_path_prefix(server, embeddings, connect):
    with rest_front(server, prefix="/a;b/c%2Fd") as front:
        with connect(f"{front.url}/", "tiny", version=3) as connection:
            answer = connection.embed(TEXTS)
            np.testing.assert_array_equal(answer, embeddings)
    assert [path for _, path, _, _ in front.seen] == [
        f"/a;b/c%2Fd/v1/models/tiny/versions/3{method}"
        for method in ("/metadata", ":predict")
    ]


def test_names_are_quoted(server, connect):
    with rest_front(server) as front:
        with connect(front.url, "a/b:c é", label="x?#") as connection:
            with pytest.raises(client.ServerError, match=r"label: x\?#"):
                connection.version()
    ((_, path, _, _),) = front.seen
    assert path == "/v1/models/a%2Fb%3Ac%20%C3%A9/labels/x%3F%23/metadata"


def test_redirects_are_errors(server, connect):
    def redirect(_, headers, content):
        if front.seen[-1][0] == "GET":
            return 200, headers, content
        return 307, {"Location": "http://elsewhere/"}, b""

    message = "answered 307: a redirect to http://elsewhere/"
    with rest_front(server, answer=redirect) as front:
        with connect(front.url, "tiny") as connection:
            with pytest.raises(client.ServerError, match=message):
                connection.embed(TEXTS)
    assert [method for method, *_ in front.seen] == ["GET", "POST"]


def test_gzip_of_requests(url, embeddings, connect):
    received = []
    for compress in (False, True):
        with counting_front(url) as (counted, counts):
            with connect(counted, "tiny", gzip=compress) as connection:
                answer = connection.embed([*TEXTS, "fox " * 5000])
                np.testing.assert_allclose(answer[:-1], embeddings, atol=1e-6)
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


def test_threads_keep_their_connections(server, embeddings):
    threads, rounds = 16, 4
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


def test_tasks_ask_at_once(url, embeddings):
    async def ask():
        async with client.connect_async(url, "tiny") as connection:
            await connection.wait_until_ready(5)
            return await asyncio.gather(
                *(connection.embed(TEXTS) for _ in range(32)),
                connection.embed(TEXTS * 10, batch_size=2, concurrency=7),
            )

    *answers, long = asyncio.run(ask())
    for answer in answers:
        np.testing.assert_allclose(answer, embeddings, atol=1e-6)
    np.testing.assert_allclose(long, np.tile(embeddings, [10, 1]), atol=1e-6)


def test_a_failed_batch_cancels_the_others(server):
    async def ask():
        async with client.connect_async(front.url, "tiny") as connection:
            with pytest.raises(client.ServerError, match="not now"):
                await connection.embed(TEXTS * 9, batch_size=1, concurrency=3)

    def refuse_later(status, headers, content):
        if len(front.seen) >= 4:
            return 400, {}, b'{"error": "not now"}'
        return status, headers, content

    with rest_front(server, answer=refuse_later) as front:
        asyncio.run(ask())
    assert len(front.seen) < 10


def test_no_proxy_of_the_environment(url, connect, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with connect(url, "tiny") as connection:
        assert connection.version(timeout=5) == 3


def test_tls(scheme, server, embeddings, certificates, connect, monkeypatch):
    tls = getattr(certificates, scheme)()
    with FRONTS[scheme](server, tls=tls) as front:
        assert front.url.startswith(f"{scheme}s://")
        with connect(front.url, "tiny", ca=certificates.ca) as connection:
            np.testing.assert_array_equal(connection.embed(TEXTS), embeddings)
        # Authorities that did not sign it are not asked twice.
        for ca in (certificates.other_ca, None):
            with (
                connect(front.url, "tiny", ca=ca) as connection,
                pytest.raises(
                    client.ServerError, match="CERTIFICATE_VERIFY_FAILED"
                ) as caught,
            ):
                connection.signatures()
            assert not caught.value.temporary
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
        with connect(front.url, "tiny") as connection:
            assert connection.version() == 3


def test_mutual_tls(scheme, server, certificates, connect, tmp_path):
    pair = certificates.client, certificates.client_key
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(path.read_bytes() for path in pair))
    tls = getattr(certificates, scheme)(mutual=True)
    with FRONTS[scheme](server, tls=tls) as front:
        for certificate, refused in (
            (both, contextlib.nullcontext()),
            (None, pytest.raises(client.ServerError)),
        ):
            files = {"ca": certificates.ca, "certificate": certificate}
            with connect(front.url, "tiny", **files) as asked, refused:
                assert asked.version(timeout=5) == 3
