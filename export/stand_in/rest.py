"""TensorFlow Serving's REST interface over a `Core`, on waitress.

After `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc`,
`http_server.cc` and `util/net_http/server/internal/evhttp_request.cc`.
"""

import functools
import http
import json
import logging
import re
import urllib.parse
import zlib

import waitress.channel
import waitress.parser
import waitress.server
from google.protobuf import json_format

from export import messages, session
from export.stand_in import IDENT, json_tensor, rpc
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
_HEADERS = [("Content-Type", "application/json")]
# As `evhttp_server.cc`.
_METHODS = frozenset("GET POST HEAD PUT DELETE OPTIONS PATCH".split())
# As `evhttp_uri_parse`, which drops what is before the path.
_URI = re.compile(
    r"(?:[a-z][a-z0-9+.-]*:)?(?://[^/?#]*)?"
    r"(?P<path>(?:[\w.~!$&'()*+,;=:@/?#-]|%[0-9a-f]{2})*)",
    re.ASCII | re.IGNORECASE,
)
_IDLE_SECONDS = 50  # HTTP_READ_TIMEOUT of libevent's `http-internal.h`
_LOOK_FOR_IDLE_SECONDS = 5
# The model server has no limit. A client that sends slowly takes a connection
# but no thread: one loop of waitress reads all bodies.
_MOST_CONNECTIONS = 10_000
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
    channel_class = _Channel


def create_server(
    core: Core, host: str, port: int, threads: int
) -> waitress.server.BaseWSGIServer:
    """Opens the REST port for `threads` requests at once; the server's `run`
    serves until `SystemExit`."""
    # Under load the queue would log a line for each request.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    return _Server(
        functools.partial(_respond, core),
        host=host,
        port=port,
        threads=threads,
        ident=IDENT,
        connection_limit=_MOST_CONNECTIONS,
        max_request_body_size=core.limits.max_request_bytes + 1,
        asyncore_use_poll=True,  # select() ends at 1024 files
        channel_timeout=_IDLE_SECONDS,
        cleanup_interval=_LOOK_FOR_IDLE_SECONDS,
    )


def _respond(core, environ, start_response):
    """Answers a request, as a WSGI application of a `Core`."""
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
        status = 200 if re.search("https?://", origin) else 400
    else:
        try:
            status, content = 200, _answer(core, environ, method, uri["path"])
        except session.StatusError as error:
            name = _codes.Code.Name(error.code)
            status = messages.HTTP_STATUS.get(name, 500)
            if isinstance(error, TooLarge):
                status = 413
            content = json.dumps({"error": error.message}, indent=4).encode()
    phrase = http.HTTPStatus(status).phrase
    start_response(f"{status} {phrase}", _HEADERS if content else [])
    return [] if method == "HEAD" else [content]


def _answer(core, environ, method, path):
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
        answer = _describe(core, spec, match["resource"])
        return json.dumps(answer, indent=1).encode()
    if match["method"] != "predict":
        raise session.StatusError(
            _codes.UNIMPLEMENTED,
            f"The stand-in answers :predict, not :{match['method']}.",
        )
    return _predict(core, spec, _body(environ, core.limits))


def _describe(core, spec, resource):
    if resource != "metadata":
        request = messages.get_model_status_pb2.GetModelStatusRequest(
            model_spec=spec
        )
        return _to_dict(rpc.status(core, request))
    request = messages.get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=spec, metadata_field=["signature_def"]
    )
    answer = _to_dict(rpc.metadata(core, request))
    del answer["metadata"]["signature_def"]["@type"]
    return answer


def _predict(core, spec, body):
    document = json_tensor.parse(body)
    name = json_tensor.signature_name(document) or session.DEFAULT_SIGNATURE
    with core.use(spec) as (_, model):
        if name not in model.signatures:
            raise invalid_argument(
                f'Serving signature name: "{name}" not found in signature def'
            )
        inputs, in_rows = json_tensor.to_arrays(
            document, model.signatures[name].inputs
        )
        core.limits.check(inputs)
        outputs = model.run(inputs, name)
    return json_tensor.to_json(outputs, in_rows)


def _body(environ, limits):
    """Reads the body, unzipped; a body that cannot be unzipped is empty."""
    body = environ["wsgi.input"].read()
    if "gzip" in environ.get("HTTP_CONTENT_ENCODING", ""):
        limit = limits.max_request_bytes
        unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body = unzip.decompress(body, limit + 1)
        except zlib.error:
            return b""
        if len(body) > limit:
            what = f"more than {limit} bytes unzipped"
            raise TooLarge(what, "max_request_bytes", limit)
        if not unzip.eof or unzip.unused_data:
            return b""
    # Python's objects take many times the bytes of their JSON.
    values = sum(body.count(character) for character in b",[{")
    limit = limits.max_request_elements
    if values > _SEPARATORS * limit:
        what = f"about {values} JSON values"
        raise TooLarge(what, "max_request_elements", limit)
    return body


def _to_dict(message):
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
