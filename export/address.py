"""The address of a model server: URL, TLS files and headers, checked."""

import dataclasses
import os
import pathlib
import re
import ssl
import urllib.parse
from collections.abc import Mapping

import httpcore2

_SCHEMES = ("grpc", "grpcs", "http", "https")
# Allowed both in HTTP/1.1 and in gRPC metadata.
_HEADER_NAME = re.compile(r"[0-9A-Za-z_.-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OWN_HEADERS = re.compile(
    "accept|accept-encoding|connection|content-.*|grpc-.*|te|"
    "transfer-encoding|.*-bin"
)


@dataclasses.dataclass(frozen=True, repr=False)
class Tls:
    """What a TLS connection needs: `context` for HTTP, PEM files for gRPC,
    whose `roots` are None for gRPC's own, where the system's are not listed."""

    context: ssl.SSLContext
    roots: bytes | None
    certificate: bytes | None
    key: bytes | None


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a model server, and what every request to it carries."""

    scheme: str
    netloc: str  # `host:port`, over gRPC any name that its resolvers take
    prefix: str = ""  # the path before `/v1/models`
    tls: Tls | None = None
    # Names are in lower case; over gRPC this is metadata.
    headers: dict[str, str] = dataclasses.field(
        default_factory=dict, repr=False
    )
    gzip: bool = False

    @property
    def url(self) -> str:
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
    if "@" in server:  # the error must not show a password
        raise ValueError(
            "`server` must not contain a user name or password. Pass them as "
            '`headers`, such as {"Authorization": "Basic ..."}.'
        )
    try:
        url = urllib.parse.urlsplit(server)
        good = url.scheme in _SCHEMES and url.hostname and url.port != 0
        (url.hostname or "").encode("idna")
    except ValueError:
        good = False
    # Not only in the path: urlsplit drops line breaks and an empty query.
    good = good and re.fullmatch("[!-~]+", server) and not {*"?#"} & {*server}
    if not good or (url.scheme.startswith("grpc") and url.path.strip("/")):
        raise ValueError(
            "`server` must be grpc://HOST:PORT, grpcs://HOST:PORT, "
            "http://HOST:PORT or https://HOST, over HTTP with a path if there "
            f"is one, in ASCII without a query, received {server!r}."
        )
    tls = None
    if url.scheme in ("grpcs", "https"):
        tls = _read_tls(ca, certificate, key)
    elif ca or certificate or key:
        raise ValueError(
            "`ca`, `certificate` and `key` require grpcs:// or https://, "
            f"received `server` {server!r}."
        )
    checked = {}
    for name, value in (headers or {}).items():
        lower = str(name).lower()
        if not _HEADER_NAME.fullmatch(lower) or _OWN_HEADERS.fullmatch(lower):
            raise ValueError(
                "Names in `headers` must consist of ASCII letters, digits, "
                "'-', '_' and '.', and not be those of the protocol, received "
                f"{name!r}."
            )
        # The error must not show the value, which may be secret.
        if not (isinstance(value, str) and _HEADER_VALUE.fullmatch(value)):
            raise ValueError(
                f"`headers[{name!r}]` must be a str of printable ASCII "
                "characters, without spaces at its ends."
            )
        checked[lower] = value
    path = url.path.rstrip("/")
    return Address(url.scheme, url.netloc, path, tls, checked, gzip)


def _read_tls(ca, certificate, key):
    roots, chain, private = (
        None if path is None else pathlib.Path(path).read_bytes()
        for path in (ca, certificate, key)
    )
    try:
        if ca is None:
            context = httpcore2.default_ssl_context()
            listed = context.get_ca_certs(binary_form=True)
            if listed:  # else OpenSSL reads them one by one when it needs them
                pem = map(ssl.DER_cert_to_PEM_cert, listed)
                roots = "".join(pem).encode()
        else:
            context = ssl.create_default_context(cafile=ca)
        if certificate or key:
            # A key alone lacks its certificate, which OpenSSL says. The
            # function keeps it from asking for a password at the terminal.
            context.load_cert_chain(certificate or key, key, lambda: "")
    except ssl.SSLError as error:
        raise ValueError(
            "`ca`, `certificate` and `key` must be PEM files of certificates "
            "and of the key of the certificate, not encrypted, received "
            f"{ca}, {certificate} and {key}: {error}."
        ) from error
    return Tls(context, roots, chain, private or chain)
