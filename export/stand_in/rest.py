"""TensorFlow Serving's REST interface as a WSGI application.

After `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc` and
`http_server.cc`.
"""

import http
import json
import logging
import re

from google.protobuf import json_format

from export import messages, session
from export.stand_in import json_tensor
from export.stand_in.manager import invalid_argument

_codes = messages.error_codes_pb2
_VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_POST = re.compile(
    r"(?i)/v1/models/(?P<name>[^/:]+)"
    + _VERSION
    + r":(?P<method>classify|regress|predict)"
)
_GET = re.compile(
    r"(?i)/v1/models(?:/(?P<name>[^/:]+))?"
    + _VERSION
    + r"(?:/(?P<resource>metadata))?"
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
_HEADERS = [("Content-Type", "application/json")]


def _to_dict(message):
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


class Application:
    """The WSGI application of a `Manager`."""

    def __init__(self, manager):
        self._manager = manager

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
        if not path.lower().startswith("/v1/"):
            start_response("404 Not Found", [])
            return []
        code = _codes.OK
        try:
            content = self._answer(environ, path)
        except session.StatusError as error:
            code, content = error.code, _error(error.message)
        except Exception as error:  # a bug here must not end the server
            logging.exception("%s %s", environ["REQUEST_METHOD"], path)
            code, content = _codes.INTERNAL, _error(repr(error))
        status = http.HTTPStatus(_HTTP_STATUS.get(code, 500))
        start_response(f"{status.value} {status.phrase}", _HEADERS)
        return [content]

    def _answer(self, environ, path):
        method = environ["REQUEST_METHOD"]
        pattern = {"POST": _POST, "GET": _GET}.get(method)
        match = pattern and pattern.fullmatch(path)
        if not match:
            raise invalid_argument(f"Malformed request: {method} {path}")
        if not match["name"]:
            raise invalid_argument("Missing model name in request.")
        request = messages.predict_pb2.PredictRequest()
        spec = request.model_spec
        spec.name = match["name"]
        if match["version"]:
            try:
                spec.version.value = int(match["version"])
            except ValueError as error:  # more than 64 bits
                raise invalid_argument(
                    f"Failed to convert version: {match['version']} to numeric."
                ) from error
        elif match["label"]:
            spec.version_label = match["label"]
        if method == "GET":
            return self._describe(spec, match["resource"])
        if match["method"].lower() != "predict":
            raise session.StatusError(
                _codes.UNIMPLEMENTED,
                f"The stand-in answers :predict, not :{match['method']}.",
            )
        return self._predict(request, environ["wsgi.input"].read())

    def _describe(self, spec, resource):
        if resource is None:
            request = messages.get_model_status_pb2.GetModelStatusRequest(
                model_spec=spec
            )
            answer = _to_dict(self._manager.status(request))
            return json.dumps(answer, indent=1).encode()
        request = messages.get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=spec, metadata_field=["signature_def"]
        )
        response = self._manager.metadata(request)
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        answer = {
            "model_spec": _to_dict(response.model_spec),
            "metadata": {"signature_def": _to_dict(signatures)},
        }
        return json.dumps(answer, indent=1).encode()

    def _predict(self, request, body):
        document = json_tensor.parse(body)
        request.model_spec.signature_name = json_tensor.signature_name(document)
        infos = self._manager.inputs(request.model_spec)
        inputs, answer_format = json_tensor.to_tensors(document, infos)
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(messages.to_tensor_proto(array))
        response = self._manager.predict(request)
        outputs = {
            name: messages.from_tensor_proto(proto)
            for name, proto in response.outputs.items()
        }
        return json_tensor.to_json(outputs, answer_format)


def _error(message):
    return json.dumps({"error": message}, indent=4).encode()
