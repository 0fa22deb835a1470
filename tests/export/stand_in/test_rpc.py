"""gRPC calls: what TF Serving answers, also to bad requests.

Expected codes and texts are from TF Serving's `predict_impl_test.cc`,
`get_model_metadata_impl_test.cc` and `get_model_status_impl_test.cc`, or from
the sources they test.
"""

import grpc
import numpy as np
import pytest

from export import messages, serve

TEXT = "open the file"


@pytest.fixture(scope="module")
def expected(embedder):
    """The Keras model's embedding of TEXT."""
    return np.array(embedder(embedder.preprocessor([TEXT])))


@pytest.fixture(scope="module")
def channel(server):
    address = server.grpc_url.removeprefix("grpc://")
    with grpc.insecure_channel(address) as opened:
        yield opened


@pytest.fixture(scope="module")
def predictions(channel):
    service = messages.prediction_service_pb2_grpc
    return service.PredictionServiceStub(channel)


def predict_request(**inputs):
    request = messages.predict_pb2.PredictRequest()
    request.model_spec.name = "tiny"
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(messages.to_tensor_proto(array))
    return request


def refusal(method, request):
    """Returns the code and the message of an error answer."""
    with pytest.raises(grpc.RpcError) as caught:
        method(request, timeout=30)
    return caught.value.code().name, caught.value.details()


def test_grpc_predict(predictions, expected):
    request = predict_request(text=np.array([TEXT.encode()], object))
    response, call = predictions.Predict.with_call(request, timeout=30)
    embedding = response.outputs["embedding"]
    # Clients read `float_val` as well as `tensor_content`.
    np.testing.assert_allclose(embedding.float_val, expected[0], atol=1e-5)
    assert response.model_spec.version.value == 3
    assert response.model_spec.signature_name == "serving_default"
    assert dict(call.initial_metadata())["x-served-by"] == serve.IDENT


TEXTS = np.array([b"x"], object)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (lambda r: r.ClearField("model_spec"), "INVALID_ARGUMENT", "ModelSpec"),
        (
            lambda r: r.model_spec.ClearField("name"),
            "INVALID_ARGUMENT",
            "no name specified",
        ),
        (
            lambda r: setattr(r.model_spec.version, "value", 7),
            "NOT_FOUND",
            "Servable not found for request: Specific(tiny, 7)",
        ),
        (
            lambda r: setattr(r.model_spec, "signature_name", "no"),
            "FAILED_PRECONDITION",
            'Serving signature key "no" not found.',
        ),
        (
            lambda r: r.inputs["more"].CopyFrom(r.inputs["text"]),
            "INVALID_ARGUMENT",
            "Sent extra: {more}. Missing but required: {}.",
        ),
        (
            lambda r: r.inputs["no"].CopyFrom(r.inputs.pop("text")),
            "INVALID_ARGUMENT",
            "Signature input alias: text",
        ),
        (
            lambda r: r.inputs["text"].tensor_shape.dim.add(size=7),
            "INVALID_ARGUMENT",
            "is not compatible with expected shape",
        ),
        (
            lambda r: setattr(r.inputs["text"], "tensor_content", b"123"),
            "INVALID_ARGUMENT",
            "tensor parsing error: text",
        ),
        (
            lambda r: r.output_filter.append("no"),
            "INVALID_ARGUMENT",
            "output tensor alias not found in signature: no",
        ),
        (
            lambda r: r.output_filter.extend(["embedding"] * 2),
            "INVALID_ARGUMENT",
            "duplicate output tensor alias: embedding",
        ),
    ],
)
def test_grpc_refuses(predictions, change, code, message):
    request = predict_request(text=TEXTS)
    change(request)
    got, details = refusal(predictions.Predict, request)
    assert got == code
    assert message in details


def test_grpc_metadata_and_status(predictions, channel):
    request = messages.get_model_metadata_pb2.GetModelMetadataRequest()
    request.model_spec.name = "tiny"
    code, details = refusal(predictions.GetModelMetadata, request)
    assert code == "INVALID_ARGUMENT"
    assert details.endswith("must specify at least one metadata_field")
    request.metadata_field.append("other")
    code, details = refusal(predictions.GetModelMetadata, request)
    assert details == "Metadata field other is not supported"
    models = messages.model_service_pb2_grpc.ModelServiceStub(channel)
    request = messages.get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "no"
    code, details = refusal(models.GetModelStatus, request)
    assert (code, details) == (
        "NOT_FOUND",
        "Could not find any versions of model no",
    )
