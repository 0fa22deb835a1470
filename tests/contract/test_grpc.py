"""gRPC requests and what TensorFlow Serving answers, as text messages."""

import dataclasses
import re

import grpc
import pytest
from google.protobuf import text_format

from export import messages

CORE = "model_servers/server_core.cc"
MANAGER = "core/basic_manager.cc"
METADATA = "servables/tensorflow/get_model_metadata_impl.cc"
PREDICT = "servables/tensorflow/predict_util.cc"
PREDICT_TEST = "servables/tensorflow/predict_impl_test.cc"
STATUS = "model_servers/get_model_status_impl.cc"
STATUS_TEST = "model_servers/get_model_status_impl_test.cc"
STATUS_UTIL = "model_servers/grpc_status_util.cc"

REQUESTS = {
    "Predict": messages.predict_pb2.PredictRequest,
    "GetModelMetadata": (
        messages.get_model_metadata_pb2.GetModelMetadataRequest
    ),
    "GetModelStatus": messages.get_model_status_pb2.GetModelStatusRequest,
}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A request and its answer.

    Attributes:
        source: file of TensorFlow Serving that the pair was read from.
        method: the name of the call.
        request: the text of the message.
        answer: the text of the message answered, of an error a pattern that
            is searched for in its details.
        code: the name of the status.
    """

    source: str
    method: str
    request: str
    answer: str
    code: str = "OK"


@pytest.fixture(scope="module")
def calls(grpc_address):
    """The calls by name."""
    with grpc.insecure_channel(grpc_address) as channel:
        models = messages.model_service_pb2_grpc.ModelServiceStub(channel)
        predictions = (
            messages.prediction_service_pb2_grpc.PredictionServiceStub(channel)
        )
        yield {
            "Predict": predictions.Predict,
            "GetModelMetadata": predictions.GetModelMetadata,
            "GetModelStatus": models.GetModelStatus,
        }


def parse(pair):
    return text_format.Parse(pair.request, REQUESTS[pair.method]())


def tensor(dtype, values, *shape):
    dims = " ".join(f"dim {{ size: {size} }}" for size in shape)
    return f"dtype: {dtype} tensor_shape {{ {dims} }} {values}"


def floats(*values):
    return tensor(
        "DT_FLOAT", " ".join(f"float_val: {v}" for v in values), len(values)
    )


def put(field, **tensors):
    return " ".join(
        f'{field} {{ key: "{name}" value {{ {value} }} }}'
        for name, value in tensors.items()
    )


def spec(name="half_plus", more=""):
    return f'model_spec {{ name: "{name}" {more} }} '


def answered(name, version, signature="serving_default"):
    more = f'version {{ value: {version} }} signature_name: "{signature}"'
    return spec(name, more)


def predict(request, answer, source=PREDICT_TEST):
    return Pair(source, "Predict", request, answer)


def refuse(request, answer, code="INVALID_ARGUMENT", source=PREDICT_TEST):
    return Pair(source, "Predict", request, answer, code)


ONE = put("inputs", x=floats(2))
SEVERAL = {
    "flags": tensor("DT_BOOL", "bool_val: true", 1),
    "floats": tensor("DT_FLOAT", "float_val: 0.5", 1, 1),
    "ints": tensor("DT_INT32", "int_val: -7", 1, 1),
    "texts": tensor("DT_STRING", r'string_val: "\377"', 1),
}
AVAILABLE = "state: AVAILABLE status {}"
BOTH_VERSIONS = (
    f"model_version_status {{ version: 2 {AVAILABLE} }} "
    f"model_version_status {{ version: 1 {AVAILABLE} }}"
)

GOOD = [
    # The newest version, a version, a label.
    predict(
        spec() + ONE, answered("half_plus", 2) + put("outputs", y=floats(4))
    ),
    predict(
        spec(more="version { value: 1 }") + ONE,
        answered("half_plus", 1) + put("outputs", y=floats(3)),
    ),
    predict(
        spec(more='version_label: "stable"') + ONE,
        answered("half_plus", 1) + put("outputs", y=floats(3)),
        CORE,
    ),
    predict(
        spec(more='version_label: "canary"') + ONE,
        answered("half_plus", 2) + put("outputs", y=floats(4)),
        CORE,
    ),
    # A scalar; bytes; one value for many (`tensor.proto`).
    predict(
        spec() + put("inputs", x=tensor("DT_FLOAT", "float_val: 2")),
        answered("half_plus", 2)
        + put("outputs", y=tensor("DT_FLOAT", "float_val: 4")),
    ),
    predict(
        spec()
        + put(
            "inputs",
            x=tensor("DT_FLOAT", r'tensor_content: "\000\000\000\100"', 1),
        ),
        answered("half_plus", 2) + put("outputs", y=floats(4)),
        PREDICT,
    ),
    predict(
        spec() + put("inputs", x=tensor("DT_FLOAT", "float_val: 2", 3)),
        answered("half_plus", 2) + put("outputs", y=floats(4, 4, 4)),
        PREDICT,
    ),
    # What `Tensor::FromProto` of TensorFlow's `tensor.cc` makes of odd ones:
    # no values, too many, no rank, bytes of no elements.
    predict(
        spec() + put("inputs", x=tensor("DT_FLOAT", "", 2)),
        answered("half_plus", 2) + put("outputs", y=floats(3, 3)),
        PREDICT,
    ),
    predict(
        spec()
        + put("inputs", x=tensor("DT_FLOAT", "float_val: 2 float_val: 9", 1)),
        answered("half_plus", 2) + put("outputs", y=floats(4)),
        PREDICT,
    ),
    predict(
        spec()
        + put(
            "inputs",
            x="dtype: DT_FLOAT float_val: 2 "
            "tensor_shape { unknown_rank: true }",
        ),
        answered("half_plus", 2)
        + put("outputs", y=tensor("DT_FLOAT", "float_val: 4")),
        PREDICT,
    ),
    predict(
        spec()
        + put("inputs", x=tensor("DT_FLOAT", 'tensor_content: "abc"', 0)),
        answered("half_plus", 2) + put("outputs", y=floats()),
        PREDICT,
    ),
    # Numbers that wrap around, and strings as bytes.
    predict(
        spec("kinds", 'signature_name: "byte"')
        + put("inputs", x=tensor("DT_UINT8", "int_val: 256 int_val: -1", 2)),
        answered("kinds", 1, "byte")
        + put("outputs", y=tensor("DT_UINT8", "int_val: 0 int_val: 255", 2)),
        PREDICT,
    ),
    predict(
        spec("kinds", 'signature_name: "text"')
        + put(
            "inputs",
            text=tensor("DT_STRING", r'tensor_content: "\001\002abc"', 2),
        ),
        answered("kinds", 1, "text")
        + put(
            "outputs",
            text_bytes=tensor(
                "DT_STRING", 'string_val: "a" string_val: "bc"', 2
            ),
        ),
        PREDICT,
    ),
    # Several inputs and outputs; some outputs of several.
    predict(
        spec("kinds", 'signature_name: "several"') + put("inputs", **SEVERAL),
        answered("kinds", 1, "several")
        + put(
            "outputs",
            not_flags=tensor("DT_BOOL", "bool_val: false", 1),
            floats_out=SEVERAL["floats"],
            ints_out=SEVERAL["ints"],
            texts_out=SEVERAL["texts"],
            texts_bytes=SEVERAL["texts"],
        ),
        PREDICT,
    ),
    predict(
        spec("kinds", 'signature_name: "several"')
        + put("inputs", **SEVERAL)
        + 'output_filter: "ints_out" output_filter: "floats_out"',
        answered("kinds", 1, "several")
        + put(
            "outputs", floats_out=SEVERAL["floats"], ints_out=SEVERAL["ints"]
        ),
    ),
    # Half precision, which REST does not carry: 0x3E00 is 1.5.
    predict(
        spec("kinds", 'signature_name: "half"')
        + put("inputs", x=tensor("DT_HALF", "half_val: 0x3E00", 1)),
        answered("kinds", 1, "half")
        + put("outputs", y=tensor("DT_HALF", "half_val: 0x3E00", 1)),
        PREDICT,
    ),
    # The status passes over a label.
    *(
        Pair(STATUS_TEST, "GetModelStatus", spec(more=more), answer)
        for more, answer in (
            ("", BOTH_VERSIONS),
            ('version_label: "none"', BOTH_VERSIONS),
            (
                "version { value: 1 }",
                f"model_version_status {{ version: 1 {AVAILABLE} }}",
            ),
        )
    ),
]

BAD = [
    refuse("", "^Missing ModelSpec$"),
    refuse("model_spec {} " + ONE, "^ModelSpec has no name specified.$"),
    refuse(
        spec("foo") + ONE,
        r"^Servable not found for request: Latest\(foo\)$",
        "NOT_FOUND",
    ),
    refuse(
        spec(more="version { value: 7 }") + ONE,
        r"^Servable not found for request: Specific\(half_plus, 7\)$",
        "NOT_FOUND",
        MANAGER,
    ),
    refuse(
        spec(more='version_label: "none"') + ONE,
        "^Unrecognized servable version label: none$",
        source=CORE,
    ),
    refuse(
        spec(more='signature_name: "none"') + ONE,
        '^Serving signature key "none" not found.$',
        "FAILED_PRECONDITION",
    ),
    refuse(
        spec("kinds") + ONE,
        '^Serving signature key "serving_default" not found.$',
        "FAILED_PRECONDITION",
    ),
    refuse(
        spec(),
        r"^input size does not match signature: 0!=1 len\({}\) != len\({x}\). "
        "Sent extra: {}. Missing but required: {x}.$",
    ),
    refuse(
        spec() + ONE + put("inputs", z=floats(1)),
        r"2!=1 len\({x,z}\) != len\({x}\). Sent extra: {z}. Missing but requ",
        source=PREDICT,
    ),
    # Other words since the inputs of a signature may have defaults.
    refuse(spec() + put("inputs", z=floats(1)), "input.* alias.* not found"),
    refuse(
        spec() + ONE + 'output_filter: "z"',
        "^output tensor alias not found in signature: z Outputs expected to be "
        "in the set {y}.$",
    ),
    refuse(
        spec() + ONE + 'output_filter: "y" output_filter: "y"',
        "^duplicate output tensor alias: y$",
    ),
    *(
        refuse(
            spec() + put("inputs", x=proto),
            "^tensor parsing error: x$",
            source=PREDICT,
        )
        for proto in (
            tensor("DT_FLOAT", 'tensor_content: "abc"', 1),
            tensor("DT_FLOAT", 'tensor_content: "abcdefgh"', 1),
            tensor("DT_FLOAT", "float_val: 1", -1),
            tensor("DT_FLOAT", "float_val: 1", 2**62, 2**62),
            tensor("DT_FLOAT", "float_val: 1", 2**62, 2**62, 0),
            tensor("DT_FLOAT", "float_val: 1", *[1] * 255),
            tensor("DT_STRING", r'tensor_content: "\001\002ab"', 2),
            tensor("DT_STRING", r'tensor_content: "\001\377"', 2),
            tensor("DT_BOOL", r'tensor_content: "\002"', 1),
            tensor("DT_INVALID", "float_val: 1", 1),
            tensor("DT_RESOURCE", "", 1),
            tensor("DT_FLOAT_REF", "float_val: 1", 1),
        )
    ),
    refuse(
        spec() + put("inputs", x=tensor("DT_STRING", 'string_val: "a"', 1)),
        "float.*string|string.*float",
    ),
    refuse(
        spec("kinds", 'signature_name: "limited"')
        + put("inputs", x=floats(50)),
        "assertion failed",
        source=PREDICT,
    ),
    refuse(
        spec(more=f'signature_name: "{"n" * 2000}"') + ONE,
        '^Serving signature key "n{1001}...TRUNCATED$',
        "FAILED_PRECONDITION",
        STATUS_UTIL,
    ),
    Pair(
        METADATA,
        "GetModelMetadata",
        'metadata_field: "signature_def"',
        "^Missing ModelSpec$",
        "INVALID_ARGUMENT",
    ),
    Pair(
        METADATA,
        "GetModelMetadata",
        spec(),
        "^GetModelMetadataRequest must specify at least one metadata_field$",
        "INVALID_ARGUMENT",
    ),
    Pair(
        METADATA,
        "GetModelMetadata",
        spec() + 'metadata_field: "other"',
        "^Metadata field .*is not supported",
        "INVALID_ARGUMENT",
    ),
    Pair(
        METADATA,
        "GetModelMetadata",
        spec("foo") + 'metadata_field: "signature_def"',
        r"^Servable not found for request: Latest\(foo\)$",
        "NOT_FOUND",
    ),
    Pair(
        STATUS,
        "GetModelStatus",
        "",
        "^Missing ModelSpec$",
        "INVALID_ARGUMENT",
    ),
    Pair(
        STATUS_TEST,
        "GetModelStatus",
        spec("foo"),
        "^Could not find any versions of model foo$",
        "NOT_FOUND",
    ),
    Pair(
        STATUS_TEST,
        "GetModelStatus",
        spec(more="version { value: 7 }"),
        "^Could not find version 7 of model half_plus$",
        "NOT_FOUND",
    ),
]


def title(pair):
    if isinstance(pair, Pair):
        return f"{pair.method} {pair.request}"[:60]


@pytest.mark.parametrize("pair", GOOD, ids=title)
def test_answers(calls, pair):
    response = calls[pair.method](parse(pair), timeout=60)
    assert response == text_format.Parse(pair.answer, type(response)())


@pytest.mark.parametrize("pair", BAD, ids=title)
def test_refuses(calls, pair):
    with pytest.raises(grpc.RpcError) as caught:
        calls[pair.method](parse(pair), timeout=60)
    assert caught.value.code().name == pair.code
    assert re.search(pair.answer, caught.value.details()), (
        caught.value.details()
    )


def test_metadata(calls):
    # `get_model_metadata_impl_test.cc`.
    label = spec(more='version_label: "stable"')
    pair = Pair(
        METADATA,
        "GetModelMetadata",
        f'{label} metadata_field: "signature_def"',
        "",
    )
    response = calls[pair.method](parse(pair), timeout=60)
    assert response.model_spec.name == "half_plus"
    assert response.model_spec.version.value == 1
    assert response.metadata.keys() == {"signature_def"}
    signatures = messages.get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    signature = signatures.signature_def["serving_default"]
    assert signature.inputs["x"].dtype == messages.types_pb2.DT_FLOAT
    assert signature.outputs.keys() == {"y"}
