"""URLs, headers and TLS files that a client takes, and refuses."""

import pytest

from export import address


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8500",
        "ftp://host:1",
        "grpc://",
        "http://",
        "http:host:1",
        "http://:8501",
        "http://host:0",
        "http://host:99999",
        "http://host:port",
        "http://[::1",
        "http://a..b",
        f"https://{'a' * 64}",
    ],
)
def test_refuses_other_urls(url):
    with pytest.raises(ValueError, match="`server` must be grpc://HOST:PORT"):
        address.parse(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host:1/a b", "ASCII characters without spaces"),
        ("http://ho\nst:1", "ASCII characters without spaces"),
        ("http://hôte:1", "ASCII characters without spaces"),
        ("", "ASCII characters without spaces"),
        ("http://host:1?model=x", "a query or a fragment"),
        ("http://host:1/?", "a query or a fragment"),
        ("https://host/p#f", "a query or a fragment"),
        ("grpc://host:1/prefix", "a path over gRPC"),
    ],
)
def test_names_what_a_url_must_not_have(url, message):
    with pytest.raises(ValueError, match=f"`server` must .*{message}"):
        address.parse(url)


@pytest.mark.parametrize("user", ["me", "me:s3cret", ":s3cret"])
def test_refuses_passwords_without_repeating_them(user):
    with pytest.raises(ValueError, match="user name or password") as caught:
        address.parse(f"https://{user}@host/")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "again"),
    [
        ("http://host:8501/", "http://host:8501"),
        ("https://host/a/b//", "https://host/a/b"),
        ("grpc://[::1]:8500/", "grpc://[::1]:8500"),
        ("HTTP://Host:1", "http://Host:1"),
    ],
)
def test_keeps_the_rest(url, again):
    assert address.parse(url).url == again


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"a b": "c"}, "Names in `headers`.*'a b'"),
        ({"": "c"}, "Names in `headers`"),
        ({"a\r\nb": "c"}, "Names in `headers`"),
        ({1: "c"}, "Names in `headers`"),
        ({"Content-Length": "5"}, "must not contain 'Content-Length'"),
        ({"grpc-timeout": "5"}, "must not contain 'grpc-timeout'"),
        ({"x-bin": "5"}, "must not contain 'x-bin'"),
        ({"A": "1", "a": "2"}, "must not contain 'a'"),
        ({"a": "s3cret\r\nb: c"}, r"`headers\['a'\]` must be a str"),
        ({"a": "s3cret é"}, r"`headers\['a'\]` must be a str"),
        ({"a": "s3cret "}, r"`headers\['a'\]` must be a str"),
        ({"a": b"s3cret"}, r"`headers\['a'\]` must be a str"),
        ({"a": None}, r"`headers\['a'\]` must be a str"),
    ],
)
def test_refuses_headers(headers, message):
    with pytest.raises(ValueError, match=message) as caught:
        address.parse("http://host", headers)
    assert "s3cret" not in str(caught.value)


def test_shows_no_secret():
    parsed = address.parse("http://host", {"Authorization": "Bearer s3cret"})
    assert parsed.headers == {"authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(parsed)


def test_tls_files_that_will_not_do(certificates, tmp_path):
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    https = "https://host"
    with pytest.raises(ValueError, match="`ca` requires grpcs:// or https://"):
        address.parse("http://host", ca=certificates.ca)
    with pytest.raises(ValueError, match="`ca` must be a PEM.*garbage.pem"):
        address.parse(https, ca=garbage)
    for ca, certificate in ((tmp_path / "no", None), (None, tmp_path / "no")):
        with pytest.raises(FileNotFoundError, match=str(tmp_path / "no")):
            address.parse(https, ca=ca, certificate=certificate)
    with pytest.raises(ValueError, match="`key` .* requires `certificate`"):
        address.parse(https, key=certificates.client_key)
    for certificate, key in (
        (garbage, None),
        (certificates.client, None),
        (certificates.client, certificates.server_key),
    ):
        with pytest.raises(ValueError, match="`certificate` and `key` must"):
            address.parse(https, certificate=certificate, key=key)
