"""Values that clients refuse to send, and answers that are no results."""

import gzip
import json

import ml_dtypes
import numpy as np
import pytest

from export import (
    address,
    client,
    grpc_transport,
    messages,
    protocol,
    rest_transport,
)
from tests.export.fronts import grpc_front, rest_front

TYPES = messages.types_pb2
REST = rest_transport.AsyncRest(address.Address("http", "host:1"), "tiny")
GRPC = grpc_transport.Grpc(address.Address("grpc", "host:1"), "tiny")
ONE_TEXT = {"text": np.array([b"a"], object)}


def signature(dtype=TYPES.DT_FLOAT, shape=(-1, 2), names=("y",)):
    """Texts to outputs of this dtype and shape; a shape of None is free."""
    definition = messages.meta_graph_pb2.SignatureDef()
    definition.inputs["text"].dtype = TYPES.DT_STRING
    definition.inputs["text"].tensor_shape.dim.add(size=-1)
    for name in names:
        info = definition.outputs[name]
        info.dtype = dtype
        if shape is None:
            info.tensor_shape.unknown_rank = True
        for size in shape or ():
            info.tensor_shape.dim.add(size=size)
    return definition


def read(outputs, definition=None, inputs=ONE_TEXT):
    content = json.dumps({"outputs": outputs}).encode()
    return REST.read_prediction(content, definition or signature(), inputs)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("open the file", "`texts` must be a list of str"),
        (["a", None], r"`texts\[1\]` must be a str.* received None"),
        (["ok", "a\ud83d"], r"`texts\[1\]` must be a str that UTF-8 can"),
        ([], "`texts` is empty"),
    ],
)
def test_texts_that_are_none(texts, message):
    with client.connect("http://host:1", "tiny") as connection:
        with pytest.raises(ValueError, match=message):
            connection.embed(texts)
        for name in ("batch_size", "concurrency"):
            with pytest.raises(ValueError, match=f"`{name}` must be positive"):
                connection.embed(["a"], **{name: 0})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["\udcff"], r"`inputs\['x'\]\[0\]` must be a str"),
        (None, r"`inputs\['x'\]` must be a str.* received None"),
        ([[1], [1, 2]], r"`inputs\['x'\]` cannot be sent"),
        (np.array([1j]), r"`inputs\['x'\]` cannot be sent: .*complex128"),
    ],
)
def test_values_that_cannot_be_sent(value, message):
    with pytest.raises(ValueError, match=message):
        protocol.to_tensors({"x": value})


@pytest.mark.parametrize("strings", [["é", "a"], [b"\xc3\xa9", b"a"]])
@pytest.mark.parametrize("dtype", [None, object])
def test_strings_of_every_kind(strings, dtype):
    (tensor,) = protocol.to_tensors({"x": np.array(strings, dtype)}).values()
    assert tensor.dtype == object
    assert [*tensor] == ["é".encode(), b"a"]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_json_has_no_nan(value, dtype):
    array = np.array([0, value], dtype)
    with pytest.raises(ValueError, match="`inputs` must be finite over REST"):
        REST.predict_request({"x": array}, "any")
    _, request = GRPC.predict_request({"x": array}, "any")
    sent = messages.from_tensor_proto(request.inputs["x"])
    np.testing.assert_array_equal(sent.astype(float), array.astype(float))


@pytest.mark.parametrize(
    ("outputs", "definition", "message"),
    [
        # The number of rows is that of the texts.
        ([[1, 2]] * 3, signature(), r"shape \(3, 2\), expected .* \[1, 2\]"),
        ([[1, 2], [3]], signature(), "list is not float32"),
        ([["1.5", "2"]], signature(), "str is not float32"),
        ([[1.5, 2]], signature(TYPES.DT_INT32), "float is not int32"),
        ([[300, 2]], signature(TYPES.DT_INT8), "300 out of bounds"),
        ([[1, 2]], signature(TYPES.DT_STRING), "int is not object"),
        ([[{"c": "a"}, "b"]], signature(TYPES.DT_STRING), "not fit .*b64"),
        ([["\ud800", "b"]], signature(TYPES.DT_STRING), "surrogates"),
        ({"y": [[1, 2]]}, signature(names=("y", "z")), "does not fit .*'z'"),
    ],
)
def test_rest_answers_that_do_not_fit(outputs, definition, message):
    with pytest.raises(client.ServerError, match=message) as caught:
        read(outputs, definition)
    assert caught.value.code == "INTERNAL"
    assert not caught.value.temporary


@pytest.mark.parametrize(
    "content",
    [
        b"<html><body>Sign in</body></html>",
        b"null",
        b"[" * 10**5,
        b'{"model_spec": {"version": "3"}, "metadata": {"signature_def": 5}}',
        b'{"metadata": {"signature_def": {"signature_def": {"a": 5}}}}',
    ],
)
def test_what_is_no_answer(content):
    message = "^http://host:1 answered what does not fit"
    for ask in (
        lambda: REST.read_prediction(content, signature(), ONE_TEXT),
        lambda: REST.read_metadata(content),
    ):
        with pytest.raises(client.ServerError, match=message) as caught:
            ask()
        assert len(str(caught.value)) < 800


def test_metadata_of_a_later_server():
    signatures = {"signature_def": {"a": {"what_is_new": 1}}}
    document = {
        "model_spec": {"version": "3"},
        "metadata": {"signature_def": signatures},
    }
    version, found = REST.read_metadata(json.dumps(document).encode())
    assert (version, [*found]) == (3, ["a"])


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (400, b'{"error": "not now"}', "answered 400: not now"),
        (400, b"\xff", "answered 400: \ufffd"),
        (400, b"[" * 10**5, r"answered 400: \[{500}\.\.\.$"),
        (200, gzip.compress(b"x" * 999, mtime=0)[:-5], "broken gzip"),
    ],
)
def test_errors_of_any_form(server, connect, status, content, message):
    headers = {"Content-Encoding": "gzip"} if status == 200 else {}
    with (
        rest_front(server, answer=lambda *_: (status, headers, content)) as f,
        connect(f.url, "tiny") as connection,
        pytest.raises(client.ServerError, match=message),
    ):
        connection.signatures()


def test_a_wrong_answer_over_the_wire(server, connect):
    def answer(status, headers, content):
        asked = ":predict" in front.seen[-1][1]
        return status, headers, b"{}" if asked else content

    with (
        rest_front(server, answer=answer) as front,
        connect(front.url, "tiny") as connection,
        pytest.raises(client.ServerError, match="does not fit.*outputs"),
    ):
        connection.embed(["a"])


def test_reads_what_fits():
    np.testing.assert_array_equal(read([[1, 2.5]])["y"], [[1, 2.5]])
    two = {"text": np.array([b"a", b"b"], object)}
    strings = signature(TYPES.DT_STRING, (-1,))
    answer = read(["é", {"b64": "/w=="}], strings, two)["y"]
    assert [*answer] == ["é".encode(), b"\xff"]
    large = [[2**63, 1]]
    answer = read(large, signature(TYPES.DT_UINT64))["y"]
    assert answer.dtype == np.uint64
    assert answer.tolist() == large
    nan = read([[float("nan"), -float("inf")]])["y"]
    np.testing.assert_array_equal(nan, [[np.nan, -np.inf]])
    # Of lists without items the declared shape says the rest.
    three = {"text": np.array([b""] * 3, object)}
    empty = read([[], [], []], signature(shape=(-1, -1, 5)), three)["y"]
    assert empty.shape == (3, 0, 5)
    # Without a batch, or with any shape, the number of rows is free.
    assert read([1, 2, 3], signature(shape=(3,)))["y"].shape == (3,)
    assert read([1, 2, 3], signature(shape=None))["y"].shape == (3,)
    assert read(5, signature(shape=()))["y"] == 5


def test_grpc_answers_that_do_not_fit():
    answer = messages.predict_pb2.PredictResponse()
    for array, message in (
        (None, "without the output 'y'"),
        (np.ones([3, 2], np.float32), r"shape \(3, 2\), expected"),
        (np.ones([1, 2], np.float64), "'y' as float64 .*expected float32"),
    ):
        if array is not None:
            answer.outputs["y"].CopyFrom(messages.to_tensor_proto(array))
        with pytest.raises(client.ServerError, match=message):
            GRPC.read_prediction(answer, signature(), ONE_TEXT)
    answer.outputs["y"].dtype = TYPES.DT_RESOURCE
    with pytest.raises(client.ServerError, match="a broken array"):
        GRPC.read_prediction(answer, signature(), ONE_TEXT)
    metadata = messages.get_model_metadata_pb2.GetModelMetadataResponse()
    metadata.metadata["signature_def"].Pack(signature())
    with pytest.raises(client.ServerError, match="without the signatures"):
        GRPC.read_metadata(metadata)


def test_a_version_with_another_signature(server, connect):
    """A server loads one whose embeddings are shorter, while a client asks."""

    def answer(response):
        if not later:
            return response
        if hasattr(response, "outputs"):
            proto = response.outputs["embedding"]
            array = messages.from_tensor_proto(proto)[:, :2]
            proto.CopyFrom(messages.to_tensor_proto(array))
            return response
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        for definition in signatures.signature_def.values():
            if "embedding" in definition.outputs:
                shape = definition.outputs["embedding"].tensor_shape
                shape.dim[-1].size = 2
        response.metadata["signature_def"].Pack(signatures)
        return response

    later = []
    with (
        grpc_front(server, answer=answer) as front,
        connect(front.url, "tiny") as connection,
    ):
        whole = connection.embed(["a", "b"])
        asked = len(front.seen)
        later.append(True)
        for _ in range(2):
            answer = connection.embed(["a", "b"])
            np.testing.assert_allclose(answer, whole[:, :2], atol=1e-6)
        # The signatures are asked for once more, and no text twice.
        assert len(front.seen) == asked + 3
        later.clear()
        with pytest.raises(ValueError, match="another version meanwhile"):
            connection.embed(["a", "b"], batch_size=1, on_batch=later.append)
