"""TensorFlow Serving's REST interface over a `Core`, on waitress.

After `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc`,
`http_server.cc` and `util/net_http/server/internal/evhttp_request.cc`.
"""

import http
import json
import logging
import re
import urllib.parse
import zlib

import numpy as np
import waitress.channel
import waitress.parser
import waitress.server
from google.protobuf import json_format

from export import messages, session
from export.stand_in import json_tensor, rpc
from export.stand_in.core import Core, TooLarge, invalid_argument

_codes = messages.error_codes_pb2
_VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
# Only the case of what is not captured is free.
_POST = re.compile(
    r"(?i)/v1/models/(?P<name>[^/:]+)"
    + _VERSION
    + r":(?P<method>(?-i:classify|regress|predict))",
    re.ASCII,
)
_GET = re.compile(
    r"(?i)/v1/models(?:/(?P<name>[^/:]+))?"
    + _VERSION
    + r"(?:/(?P<resource>metadata))?",
    re.ASCII,
)
# Every other code is 500.
_HTTP_STATUS = {
    _codes.OK: 200,
    _codes.INVALID_ARGUMENT: 400,
    _codes.FAILED_PRECONDITION: 400,
    _codes.OUT_OF_RANGE: 400,
    _codes.UNAUTHENTICATED: 401,
    _codes.PERMISSION_DENIED: 403,
    _codes.NOT_FOUND: 404,
    _codes.ALREADY_EXISTS: 409,
    _codes.ABORTED: 409,
    _codes.RESOURCE_EXHAUSTED: 429,
    _codes.UNIMPLEMENTED: 501,
    _codes.UNAVAILABLE: 503,
    _codes.DEADLINE_EXCEEDED: 504,
}
_DEFAULT_SIGNATURE = session.DEFAULT_SIGNATURE
_HEADERS = [("Content-Type", "application/json")]
# As `evhttp_server.cc`.
_METHODS = frozenset("GET POST HEAD PUT DELETE OPTIONS PATCH".split())
# As `evhttp_uri_parse`, which drops what is before the path.
_URI = re.compile(
    r"(?:[a-z][a-z0-9+.-]*:)?(?://[^/?#]*)?"
    r"(?P<path>(?:[\w.~!$&'()*+,;=:@/?#-]|%[0-9a-f]{2})*)",
    re.ASCII | re.IGNORECASE,
)
_ORIGIN = re.compile("https?://")
_IDLE_SECONDS = 50  # HTTP_READ_TIMEOUT of libevent's `http-internal.h`
_LOOK_FOR_IDLE_SECONDS = 5
# The model server has no limit. A client that sends slowly takes a connection
# but no thread: one loop of waitress reads all bodies.
_MOST_CONNECTIONS = 1000
# Characters that separate JSON values, for each element a request may have.
_SEPARATORS = 4


class _Parser(waitress.parser.HTTPRequestParser):
    """Refuses a body with two lengths, which could smuggle a request."""

    def parse_header(self, header_plus):
        super().parse_header(header_plus)
        encoded = self.chunked or "TRANSFER_ENCODING" in self.headers
        if encoded and "CONTENT_LENGTH" in self.headers:
            raise waitress.parser.ParsingError(
                "Transfer-Encoding and Content-Length in one request"
            )


class _Channel(waitress.channel.HTTPChannel):
    parser_class = _Parser


class _Server(waitress.server.TcpWSGIServer):
    """Closes the connection that is idle longest when there are too many."""

    channel_class = _Channel

    def handle_accept(self):
        super().handle_accept()
        if len(self.active_channels) > _MOST_CONNECTIONS:
            idle = [c for c in self.active_channels.values() if not c.requests]
            min(idle, key=lambda c: c.last_activity).handle_close()


def create_server(
    core: Core, host: str, port: int, threads: int, ident: str
) -> waitress.server.BaseWSGIServer:
    """Opens the REST port; the server's `run` serves until `SystemExit`.

    `threads` requests are answered at once; `ident` is the `Server` header.
    """
    # Under load the queue would log a line for each request.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    return _Server(
        _Application(core),
        host=host,
        port=port,
        threads=threads,
        ident=ident,
        # Out of reach: the server closes idle connections before.
        connection_limit=2 * _MOST_CONNECTIONS,
        max_request_body_size=core.limits.max_request_bytes + 1,
        asyncore_use_poll=True,  # select() ends at 1024 files
        channel_timeout=_IDLE_SECONDS,
        cleanup_interval=_LOOK_FOR_IDLE_SECONDS,
    )


class _Application:
    """The WSGI application of a `Core`."""

    def __init__(self, core):
        self._core = core

    def __call__(self, environ, start_response):
        method = environ["REQUEST_METHOD"]
        # As in the model server, the query is part of the path, and percent
        # encoding is decoded only after the path is split.
        uri = _URI.fullmatch(environ["REQUEST_URI"])
        content = b""
        if method not in _METHODS:
            status = 501
        elif not uri:
            status = 400
        elif not uri["path"].lower().startswith("/v1/"):
            status = 404
        elif method == "OPTIONS":
            origin = environ.get("HTTP_ORIGIN", "")
            status = 200 if _ORIGIN.search(origin) else 400
        else:
            status, content = self._status(environ, method, uri["path"])
        phrase = http.HTTPStatus(status).phrase
        start_response(f"{status} {phrase}", _HEADERS if content else [])
        return [] if method == "HEAD" else [content]

    def _status(self, environ, method, path):
        try:
            return 200, self._answer(environ, method, path)
        except TooLarge as error:
            return 413, _error(error.message)
        except session.StatusError as error:
            return _HTTP_STATUS.get(error.code, 500), _error(error.message)
        except Exception as error:  # a bug here must not end the server
            logging.exception("%s %s", method, path)
            return 500, _error(repr(error))

    def _answer(self, environ, method, path):
        pattern = {"POST": _POST, "GET": _GET}.get(method)
        match = pattern and pattern.fullmatch(path)
        if not match:
            raise invalid_argument(f"Malformed request: {method} {path}")
        if not match["name"]:
            raise invalid_argument("Missing model name in request.")
        spec = messages.predict_pb2.PredictRequest().model_spec
        spec.name = urllib.parse.unquote(match["name"])
        if match["version"]:
            try:
                spec.version.value = int(match["version"])
            except ValueError as error:  # more than 64 bits
                raise invalid_argument(
                    f"Failed to convert version: {match['version']} to numeric."
                ) from error
        elif match["label"]:
            spec.version_label = urllib.parse.unquote(match["label"])
        if method == "GET":
            answer = self._describe(spec, match["resource"])
            return json.dumps(answer, indent=1).encode()
        if match["method"] != "predict":
            raise session.StatusError(
                _codes.UNIMPLEMENTED,
                f"The stand-in answers :predict, not :{match['method']}.",
            )
        return self._predict(spec, _body(environ, self._core.limits))

    def _describe(self, spec, resource):
        if resource != "metadata":
            request = messages.get_model_status_pb2.GetModelStatusRequest(
                model_spec=spec
            )
            return _to_dict(rpc.status(self._core, request))
        request = messages.get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=spec, metadata_field=["signature_def"]
        )
        response = rpc.metadata(self._core, request)
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return {
            "model_spec": _to_dict(response.model_spec),
            "metadata": {"signature_def": _to_dict(signatures)},
        }

    def _predict(self, spec, body):
        document = json_tensor.parse(body)
        name = json_tensor.signature_name(document) or _DEFAULT_SIGNATURE
        with self._core.use(spec) as (_, model):
            if name not in model.signatures:
                raise invalid_argument(
                    f'Serving signature name: "{name}" not found in signature '
                    "def"
                )
            inputs, in_rows = json_tensor.to_arrays(
                document, model.signatures[name].inputs
            )
            self._core.limits.check(
                (x.dtype == np.object_, x.size) for x in inputs.values()
            )
            outputs = model.run(inputs, name)
        return json_tensor.to_json(outputs, in_rows)


def _body(environ, limits):
    """Reads the body, unzipped; a body that cannot be unzipped is empty."""
    body = environ["wsgi.input"].read()
    if "gzip" in environ.get("HTTP_CONTENT_ENCODING", ""):
        body = _unzip(body, limits.max_request_bytes)
    # Python's objects take many times the bytes of their JSON.
    values = sum(body.count(character) for character in b",[{")
    if values > _SEPARATORS * limits.max_request_elements:
        raise TooLarge(
            f"about {values} JSON values",
            "max_request_elements",
            limits.max_request_elements,
        )
    return body


def _unzip(body, limit):
    unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        body = unzip.decompress(body, limit + 1)
    except zlib.error:
        return b""
    if len(body) > limit:
        raise TooLarge(
            f"more than {limit} bytes unzipped", "max_request_bytes", limit
        )
    return body if unzip.eof and not unzip.unused_data else b""


def _to_dict(message):
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def _error(message):
    return json.dumps({"error": message}, indent=4).encode()
