"""Requests and what TensorFlow Serving answers: those of `rest.txt` and
`grpc.txt`, and odd ones."""

import contextlib
import gzip
import http.client
import json
import pathlib
import re

import grpc
import pytest
import requests
from google.protobuf import text_format

from export import messages

HALF = "/v1/models/half_plus"
PREDICT = f"{HALF}:predict"
GZIP = {"Content-Encoding": "gzip"}
ZIPPED = gzip.compress(b'{"instances": [1.0]}', mtime=0)
MESSAGES = {
    "Predict": messages.predict_pb2.PredictRequest,
    "GetModelMetadata": (
        messages.get_model_metadata_pb2.GetModelMetadataRequest
    ),
    "GetModelStatus": messages.get_model_status_pb2.GetModelStatusRequest,
}


def read_pairs(name):
    """Yields call, body, status and answer of each pair in a file."""
    text = pathlib.Path(__file__).with_name(name).read_text("utf-8")
    call = body = None
    for line in text.splitlines():
        first, _, rest = line.partition(" ")
        if first == ">":
            body = rest
        elif first.isdigit() or first in grpc.StatusCode.__members__:
            yield pytest.param(
                call, body, first, rest, id=f"{call} {body}"[:60]
            )
            body = None
        elif first.isalpha():
            call = line


def post(rest_url, body, headers=None):
    url = rest_url + PREDICT
    return requests.post(url, data=body, headers=headers, timeout=60)


def canonical(text):
    """JSON with sorted names, in which NaN equals NaN and 1 is not 1.0."""
    return json.dumps(json.loads(text), sort_keys=True)


def check(response, status, answer):
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    if status == 200:
        assert canonical(response.content) == canonical(answer)
    else:
        document = response.json()
        assert document.keys() == {"error"}
        assert re.search(answer, document["error"]), document["error"]


@pytest.mark.parametrize(
    ("call", "body", "status", "answer"), list(read_pairs("rest.txt"))
)
def test_rest(rest_url, call, body, status, answer):
    method, path = call.split(" ")
    data = None if body is None else body.encode()
    response = requests.request(method, rest_url + path, data=data, timeout=60)
    check(response, int(status), answer)


@pytest.mark.parametrize(
    ("body", "status", "answer"),
    [
        # `json_tensor.cc`: what is around the object, and deep in it.
        ('\ufeff \r\n\t{"inputs": 1} {]', 200, '{"outputs": 3.5}'),
        (
            f'{{"inputs": 1, "nested": {"[" * 500 + "]" * 500}}}',
            200,
            '{"outputs": 3.5}',
        ),
        # Of a value at most 256 bytes come back.
        (f'["{"a" * 999}", 1]', 400, "^JSON Value: .{1,1010} Is not obj"),
        (f"[{'1, ' * 999} 1]", 400, "^JSON Value: .{255,265} Is not obj"),
        (f'{{"inputs": {"9" * 400}}}', 400, "^JSON Parse error: "),
        ('{"inputs": "\n"}', 400, "^JSON Parse error: "),
    ],
    ids=range(6),
)
def test_odd_bodies(rest_url, body, status, answer):
    check(post(rest_url, body.encode()), status, answer)


@pytest.mark.parametrize(
    ("body", "status", "answer"),
    [
        (ZIPPED, 200, '{"predictions": [3.5]}'),
        *(
            (body, 400, "^JSON Parse error: The document is empty")
            for body in (b"no gzip", ZIPPED[:-1], ZIPPED + b"x", 2 * ZIPPED)
        ),
    ],
)
def test_zipped_bodies(rest_url, body, status, answer):
    # `evhttp_request.cc`.
    check(post(rest_url, body, GZIP), status, answer)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        # `http_rest_api_handler_test.cc`: more than 64 bits.
        ("POST", f"{HALF}/versions/{2**64 - 1}:predict", {}, 400),
        # `evhttp_server.cc` answers itself, with a page of libevent's.
        ("GET", "/", {}, 404),
        ("GET", "/v2/models", {}, 404),
        # `http_server.cc`: a preflight request of CORS.
        ("OPTIONS", HALF, {"Origin": "https://a.b"}, 200),
        ("OPTIONS", HALF, {"Origin": "a.b"}, 400),
        ("OPTIONS", HALF, {}, 400),
        ("OPTIONS", "/v2", {"Origin": "https://a.b"}, 404),
        # `evhttp_server.cc` takes seven methods.
        ("HEAD", HALF, {}, 400),
        ("TRACE", HALF, {}, 501),
        ("FOO", HALF, {}, 501),
        # `evhttp_request.cc`: what no URI may hold, and the part after `#`.
        ("GET", "/v1/models/a|b", {}, 400),
        ("GET", "/v1/models/a%zz", {}, 400),
        ("GET", f"{HALF}#part", {}, 404),
        ("GET", f"{HALF}?", {}, 404),
        ("GET", f"http://any.host{HALF}", {}, 200),
    ],
)
def test_methods_and_uris(rest_url, method, path, headers, status):
    # `requests` would normalize the path.
    connection = http.client.HTTPConnection(rest_url.rpartition("/")[2])
    with contextlib.closing(connection):
        for _ in range(2):  # a body of HEAD would be read as the next answer
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            response.read()
            assert response.status == status


def test_metadata_over_rest(rest_url):
    # `http_rest_api_util.cc`: names as in the messages, numbers as strings.
    url = f"{rest_url}{HALF}/labels/stable/metadata"
    response = requests.get(url, timeout=60)
    assert response.headers["Content-Type"] == "application/json"
    answer = response.json()
    assert answer["model_spec"] == {
        "name": "half_plus",
        "signature_name": "",
        "version": "1",
    }
    (key,) = answer["metadata"]
    signature = answer["metadata"][key][key]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert signature["inputs"]["x"]["tensor_shape"] == {
        "dim": [],
        "unknown_rank": True,
    }
    assert signature["inputs"]["x"]["name"].endswith(":0")
    assert signature["outputs"].keys() == {"y"}


@pytest.fixture(scope="module")
def ask(grpc_address):
    """Asks a method, by name, with the text of a request."""
    with grpc.insecure_channel(grpc_address) as channel:
        models = messages.model_service_pb2_grpc.ModelServiceStub(channel)
        predictions = (
            messages.prediction_service_pb2_grpc.PredictionServiceStub(channel)
        )

        def send(method, request):
            stub = models if method == "GetModelStatus" else predictions
            message = text_format.Parse(request, MESSAGES[method]())
            return getattr(stub, method)(message, timeout=60)

        yield send


TENSOR = (
    'model_spec {{ name: "half_plus" signature_name: "{}" }} inputs {{ key: '
    '"x" value {{ dtype: DT_FLOAT tensor_shape {{ {} }} float_val: 1 }} }}'
)


@pytest.mark.parametrize(
    ("call", "body", "status", "answer"),
    [
        *read_pairs("grpc.txt"),
        pytest.param(  # `servables/tensorflow/predict_util.cc`
            "Predict",
            TENSOR.format("", "dim { size: 1 } " * 255),
            "INVALID_ARGUMENT",
            "^tensor parsing error: x$",
            id="more axes than TensorFlow has",
        ),
        pytest.param(  # `model_servers/grpc_status_util.cc`
            "Predict",
            TENSOR.format("n" * 2000, ""),
            "FAILED_PRECONDITION",
            '^Serving signature key "n{1001}...TRUNCATED$',
            id="a long error is cut off",
        ),
    ],
)
def test_grpc(ask, call, body, status, answer):
    if status == "OK":
        response = ask(call, body)
        assert response == text_format.Parse(answer, type(response)())
        return
    with pytest.raises(grpc.RpcError) as caught:
        ask(call, body)
    assert caught.value.code().name == status
    assert re.search(answer, caught.value.details()), caught.value.details()


def test_metadata_over_grpc(ask):
    # `get_model_metadata_impl_test.cc`.
    response = ask(
        "GetModelMetadata",
        'model_spec { name: "half_plus" version_label: "stable" } '
        'metadata_field: "signature_def"',
    )
    assert response.model_spec.name == "half_plus"
    assert response.model_spec.version.value == 1
    assert response.metadata.keys() == {"signature_def"}
    signatures = messages.get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    signature = signatures.signature_def["serving_default"]
    assert signature.inputs["x"].dtype == messages.types_pb2.DT_FLOAT
    assert signature.outputs.keys() == {"y"}
