"""gRPC requests and what TensorFlow Serving answers: those of `grpc.txt`, and
long ones."""

import pathlib
import re

import grpc
import pytest
from google.protobuf import text_format

from export import messages

REQUESTS = {
    "Predict": messages.predict_pb2.PredictRequest,
    "GetModelMetadata": (
        messages.get_model_metadata_pb2.GetModelMetadataRequest
    ),
    "GetModelStatus": messages.get_model_status_pb2.GetModelStatusRequest,
}


def read_pairs():
    """Yields method, request, status and answer of `grpc.txt`."""
    text = pathlib.Path(__file__).with_name("grpc.txt").read_text("utf-8")
    method = request = None
    for line in text.splitlines():
        first, _, rest = line.partition(" ")
        if first in REQUESTS:
            method = first
        elif first == ">":
            request = rest
        elif first.isupper():
            name = f"{method} {request}"[:60]
            yield pytest.param(method, request, first, rest, id=name)


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
            message = text_format.Parse(request, REQUESTS[method]())
            return getattr(stub, method)(message, timeout=60)

        yield send


def check_refused(ask, method, request, status, details):
    with pytest.raises(grpc.RpcError) as caught:
        ask(method, request)
    assert caught.value.code().name == status
    assert re.search(details, caught.value.details()), caught.value.details()


@pytest.mark.parametrize(
    ("method", "request_text", "status", "answer"), list(read_pairs())
)
def test_answers(ask, method, request_text, status, answer):
    if status == "OK":
        response = ask(method, request_text)
        assert response == text_format.Parse(answer, type(response)())
    else:
        check_refused(ask, method, request_text, status, answer)


def test_more_axes_than_tensorflow_has(ask):
    # `servables/tensorflow/predict_util.cc`.
    shape = "dim { size: 1 } " * 255
    tensor = f"dtype: DT_FLOAT tensor_shape {{ {shape} }} float_val: 1"
    request = (
        'model_spec { name: "half_plus" } '
        f'inputs {{ key: "x" value {{ {tensor} }} }}'
    )
    message = "^tensor parsing error: x$"
    check_refused(ask, "Predict", request, "INVALID_ARGUMENT", message)


def test_a_long_error_is_cut_off(ask):
    # `model_servers/grpc_status_util.cc`.
    request = (
        f'model_spec {{ name: "half_plus" signature_name: "{"n" * 2000}" }} '
        'inputs { key: "x" value { dtype: DT_FLOAT float_val: 2 } }'
    )
    message = '^Serving signature key "n{1001}...TRUNCATED$'
    check_refused(ask, "Predict", request, "FAILED_PRECONDITION", message)


def test_metadata(ask):
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
