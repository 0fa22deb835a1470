"""URLs, headers and TLS files that a client takes, and refuses."""

import pytest

from export import address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8500",
        "ftp://host:1",
        "grpc://",
        "http://:8501",
        "http://host:0",
        "http://host:99999",
        "http://[::1",
        "http://a..b",
        "http://host:1/a b",
        "http://ho\nst:1",
        "http://hôte:1",
        "http://host:1/?",
        "https://host/p#f",
        "grpc://host:1/prefix",
    ],
)
def test_refuses_other_urls(url):
    with pytest.raises(ValueError, match="`server` must be grpc://HOST:PORT"):
        address.parse(url)


@pytest.mark.parametrize("user", ["me:s3cret", ":s3cret"])
def test_refuses_passwords_without_repeating_them(user):
    with pytest.raises(ValueError, match="user name or password") as caught:
        address.parse(f"https://{user}@host/")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "again"),
    [
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
        ({"": "c"}, "Names in `headers`"),
        ({"a\r\nb": "c"}, "Names in `headers`"),
        ({"Content-Length": "5"}, "Names in `headers`.*'Content-Length'"),
        ({"x-bin": "5"}, "Names in `headers`.*'x-bin'"),
        ({"a": "s3cret\r\nb: c"}, r"`headers\['a'\]` must be a str"),
        ({"a": "s3cret é"}, r"`headers\['a'\]` must be a str"),
        ({"a": b"s3cret"}, r"`headers\['a'\]` must be a str"),
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
    garbage, missing = tmp_path / "garbage.pem", tmp_path / "no"
    garbage.write_text("no certificate")
    with pytest.raises(ValueError, match="require grpcs:// or https://"):
        address.parse("http://host", ca=certificates.ca)
    with pytest.raises(FileNotFoundError, match=str(missing)):
        address.parse("https://host", certificate=missing)
    for files in (
        {"ca": garbage},
        {"certificate": garbage},
        {"key": certificates.client_key},
        {"certificate": certificates.client},
        {"certificate": certificates.client, "key": certificates.server_key},
    ):
        with pytest.raises(ValueError, match="must be PEM files of") as caught:
            address.parse("https://host", **files)
        assert str(*list(files.values())[:1]) in str(caught.value)
