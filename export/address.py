"""The address of a model server: URL, TLS files and headers, checked."""

import dataclasses
import os
import pathlib
import re
import ssl
import urllib.parse
from collections.abc import Mapping

import httpcore2

_SCHEMES = {"grpc": False, "grpcs": True, "http": False, "https": True}
_FORMS = "grpc://HOST:PORT, grpcs://HOST:PORT, http://HOST:PORT or https://HOST"
# Allowed both in HTTP/1.1 and in gRPC metadata.
_HEADER_NAME = re.compile(r"[0-9A-Za-z_.-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OWN_HEADERS = re.compile(
    "accept|accept-encoding|connection|content-.*|grpc-.*|te|"
    "transfer-encoding|.*-bin"
)


@dataclasses.dataclass(frozen=True, repr=False)
class Tls:
    """What a TLS connection needs: `context` for HTTP, the others for gRPC.

    The bytes are PEM: the certificate authorities (None for gRPC's own, where
    the system's cannot be listed), the client's certificate chain and its key.
    """

    context: ssl.SSLContext
    roots: bytes | None
    certificate: bytes | None
    key: bytes | None


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a model server, and what every request to it carries.

    `netloc` is `host:port`, over gRPC any name that its resolvers take;
    `prefix` is the path before `/v1/models`, without a slash at its end.
    `headers`, with names in lower case, are metadata over gRPC.
    """

    scheme: str
    netloc: str
    prefix: str = ""
    tls: Tls | None = None
    headers: dict[str, str] = dataclasses.field(
        default_factory=dict, repr=False
    )
    gzip: bool = False

    @property
    def url(self) -> str:
        """The URL, without a slash at its end."""
        return f"{self.scheme}://{self.netloc}{self.prefix}"


def parse(
    server: str,
    headers: Mapping[str, str] | None = None,
    ca: str | os.PathLike | None = None,
    certificate: str | os.PathLike | None = None,
    key: str | os.PathLike | None = None,
    gzip: bool = False,
) -> Address:
    """Returns the address of a server's URL; see `Address`.

    `ca`, `certificate` and `key` are PEM files: the authorities to trust (the
    system's by default), the client's certificate chain for servers that
    require one, and its key, which `certificate` may contain. `gzip`
    compresses requests.
    """
    url = _split(server)
    tls_files = {"ca": ca, "certificate": certificate, "key": key}
    given = [name for name, path in tls_files.items() if path is not None]
    if given and not _SCHEMES[url.scheme]:
        raise ValueError(
            f"`{given[0]}` requires grpcs:// or https://, received `server` "
            f"{server!r}."
        )
    return Address(
        url.scheme,
        url.netloc,
        url.path.rstrip("/"),
        _tls(ca, certificate, key) if _SCHEMES[url.scheme] else None,
        _checked_headers(headers or {}),
        gzip,
    )


def _split(server):
    if not re.fullmatch("[!-~]+", server):
        raise ValueError(
            "`server` must consist of ASCII characters without spaces, "
            f"received {server!r}."
        )
    if "@" in server:  # the error must not show a password
        raise ValueError(
            "`server` must not contain a user name or password. Pass them as "
            '`headers`, such as {"Authorization": "Basic ..."}.'
        )
    try:
        url = urllib.parse.urlsplit(server)
        known = url.scheme in _SCHEMES and url.hostname and url.port != 0
        (url.hostname or "").encode("idna")
    except ValueError as error:
        raise ValueError(
            f"`server` must be {_FORMS}, received {server!r}: {error}."
        ) from error
    if not known:
        raise ValueError(f"`server` must be {_FORMS}, received {server!r}.")
    if "?" in server or "#" in server:
        raise ValueError(
            "`server` must not contain a query or a fragment, received "
            f"{server!r}."
        )
    if url.scheme.startswith("grpc") and url.path.strip("/"):
        raise ValueError(
            "`server` must not contain a path over gRPC, which has none, "
            f"received {server!r}."
        )
    return url


def _checked_headers(headers):
    checked = {}
    for name, value in headers.items():
        if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
            raise ValueError(
                "Names in `headers` must consist of ASCII letters, digits, "
                f"'-', '_' and '.', received {name!r}."
            )
        lower = name.lower()
        if _OWN_HEADERS.fullmatch(lower) or lower in checked:
            raise ValueError(
                f"`headers` must not contain {name!r}: the client sends it, "
                "the protocol reserves it, or it is there twice."
            )
        # The error must not show the value, which may be secret.
        if not (isinstance(value, str) and _HEADER_VALUE.fullmatch(value)):
            raise ValueError(
                f"`headers[{name!r}]` must be a str of printable ASCII "
                "characters, without spaces at its ends."
            )
        checked[lower] = value
    return checked


def _tls(ca, certificate, key):
    if key is not None and certificate is None:
        raise ValueError(
            f"`key` {key} requires `certificate`, the PEM file of the "
            "certificate that belongs to it."
        )
    roots, chain, private = (
        pathlib.Path(path).read_bytes() if path is not None else None
        for path in (ca, certificate, key)
    )
    if ca is None:
        context = httpcore2.default_ssl_context()
        listed = context.get_ca_certs(binary_form=True)
        if listed:  # else OpenSSL reads them one by one when it needs them
            pem = map(ssl.DER_cert_to_PEM_cert, listed)
            roots = "".join(pem).encode()
    else:
        try:
            context = ssl.create_default_context(cafile=ca)
        except ssl.SSLError as error:
            raise ValueError(
                f"`ca` must be a PEM file of certificates, received {ca}: "
                f"{error}."
            ) from error
    if certificate is not None:
        try:
            # Keeps OpenSSL from asking for a password at the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except ssl.SSLError as error:
            raise ValueError(
                "`certificate` and `key` must be the PEM files of a "
                "certificate and its key, not encrypted, received "
                f"{certificate} and {key}: {error}."
            ) from error
    return Tls(context, roots, chain, chain if key is None else private)
