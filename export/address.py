"""Where a model server is: its URL, TLS files and headers, checked."""

import dataclasses
import pathlib
import re
import ssl
import urllib.parse

import httpcore2

_SCHEMES = {"grpc": False, "grpcs": True, "http": False, "https": True}
_FORMS = "grpc://HOST:PORT, grpcs://HOST:PORT, http://HOST:PORT or https://HOST"
# Names that both HTTP/1.1 and gRPC metadata take.
_HEADER_NAME = re.compile(r"[0-9A-Za-z_.-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_OWN_HEADERS = re.compile(
    "accept|accept-encoding|connection|content-.*|grpc-.*|te|"
    "transfer-encoding|.*-bin"
)


@dataclasses.dataclass(frozen=True)
class Tls:
    """What a TLS connection is checked and opened with.

    Attributes:
        context: `ssl.SSLContext`, for HTTP.
        roots: bytes, PEM of the certificate authorities, for gRPC; None where
            the system's cannot be listed: gRPC's own then.
        certificate: bytes, PEM of the client's chain, or None.
        key: bytes, PEM of its key, or None.
    """

    context: ssl.SSLContext = dataclasses.field(repr=False)
    roots: bytes | None = dataclasses.field(repr=False)
    certificate: bytes | None = dataclasses.field(repr=False)
    key: bytes | None = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a model server is, and what every request to it carries.

    Attributes:
        scheme: str, "grpc", "grpcs", "http" or "https".
        netloc: str, `host:port`; over gRPC any name that its resolvers take.
        prefix: str, the path before `/v1/models`, "" or one that starts with
            a slash.
        tls: `Tls`, None without.
        headers: `{lower-case name: value}`.
        gzip: bool, whether requests are compressed.
    """

    scheme: str
    netloc: str
    prefix: str = ""
    tls: Tls | None = None
    headers: dict = dataclasses.field(default_factory=dict, repr=False)
    gzip: bool = False

    @property
    def url(self):
        """The URL, without a slash at its end."""
        return f"{self.scheme}://{self.netloc}{self.prefix}"


def parse(
    server, headers=None, ca=None, certificate=None, key=None, gzip=False
):
    """Returns the `Address` of a server's URL.

    Args:
        server: str, `grpc://`, `grpcs://`, `http://` or `https://` and
            `host:port`; over HTTP also a path, which goes before
            `/v1/models`.
        headers: `{name: value}`, sent with every request.
        ca: path of a PEM file of the certificate authorities to trust; the
            system's by default.
        certificate: path of a PEM file, the client's certificate chain.
        key: path of a PEM file, its key; by default in `certificate`, too.
        gzip: bool, whether requests are compressed.

    Raises:
        ValueError: if the URL, a header or a file will not do.
        FileNotFoundError: if there is no such file.
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
    if "@" in server:  # not repeated here: it may be a password
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
                f"`headers` must not contain {name!r}, which the client sends "
                "itself, the protocol reserves, or is there twice."
            )
        # The value is a secret, perhaps.
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
        None if path is None else pathlib.Path(path).read_bytes()
        for path in (ca, certificate, key)
    )
    if ca is None:
        context = httpcore2.default_ssl_context()
        listed = context.get_ca_certs(binary_form=True)
        if listed:  # else they are read one by one, when they are needed
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
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(
                "`certificate` and `key` must be the PEM files of a "
                "certificate and its key, not encrypted, received "
                f"{certificate} and {key}: {error}."
            ) from error
    return Tls(context, roots, chain, chain if key is None else private)


def _no_password():
    """Is asked in place of whoever sits at the terminal."""
    return ""
