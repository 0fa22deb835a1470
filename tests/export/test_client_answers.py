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
        (["a", None], r"`texts\[1\]` must be a str, received None"),
        ([5], r"`texts\[0\]` must be a str, received 5 of type int"),
        ([["a"], ["b"]], r"`texts\[0\]` must be a str, received \['a'\]"),
        (["ok", "a\ud83d"], r"`texts\[1\]` must be text.* character 1 is"),
        ([], "`texts` is empty"),
    ],
)
def test_texts_that_are_none(texts, message, server, connect):
    with connect(server.rest_url, "tiny") as connection:
        with pytest.raises(ValueError, match=message):
            connection.embed(texts)
        for name in ("batch_size", "concurrency"):
            with pytest.raises(ValueError, match=f"`{name}` must be positive"):
                connection.embed(["a"], **{name: 0})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["\udcff"], r"`inputs\['x'\]\[0\]` must be text"),
        (None, r"`inputs\['x'\]` must be a str, received None"),
        ([b"a", 1], r"`inputs\['x'\]\[1\]` must be a str"),
        ([[1], [1, 2]], r"`inputs\['x'\]` must be an array"),
        (np.array(["2026-01-01"], "M8[D]"), r"`inputs\['x'\]` cannot be sent"),
        (np.array([1j]), r"`inputs\['x'\]` cannot be sent"),
    ],
)
def test_values_that_cannot_be_sent(value, message):
    if isinstance(value, list) and b"a" in value:
        value = np.array(value, object)
    with pytest.raises(ValueError, match=message):
        protocol.to_tensors({"x": value})


@pytest.mark.parametrize("strings", [["é", "a"], [b"\xc3\xa9", b"a"]])
@pytest.mark.parametrize("dtype", [None, object])
def test_strings_of_every_kind(strings, dtype):
    (tensor,) = protocol.to_tensors({"x": np.array(strings, dtype)}).values()
    assert tensor.dtype == object
    assert [*tensor] == ["é".encode(), b"a"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_json_has_no_nan(value, dtype):
    array = np.array([0, value], dtype)
    with pytest.raises(ValueError, match=r"`inputs\['x'\]` must be finite"):
        REST.predict_request({"x": array}, "any")
    _, request = GRPC.predict_request({"x": array}, "any")
    sent = messages.from_tensor_proto(request.inputs["x"])
    np.testing.assert_array_equal(sent.astype(float), array.astype(float))


@pytest.mark.parametrize(
    ("outputs", "definition", "message"),
    [
        # The number of rows is that of the texts.
        ([[1, 2]] * 3, signature(), "3 rows of 'y' for 1 of the inputs"),
        ([], signature(), "0 rows of 'y' for 1 of the inputs"),
        # Shapes
        ([[1, 2, 3]], signature(), r"shape \(1, 3\), declared \[-1, 2\]"),
        ([1.5], signature(), r"shape \(1,\), declared \[-1, 2\]"),
        (1.5, signature(), r"shape \(\), declared \[-1, 2\]"),
        ([[1, 2], [3]], signature(), "'y' that does not fit"),
        # Types
        ([["1.5", "2"]], signature(), "'1.5' is not float32"),
        ([[True, False]], signature(), "True is not float32"),
        ([[None, 1]], signature(), "None is not float32"),
        ([[1.5, 2]], signature(TYPES.DT_INT32), "1.5 is not an integer"),
        ([[True, 2]], signature(TYPES.DT_INT32), "True is not an integer"),
        ([[300, 2]], signature(TYPES.DT_INT8), "'y' that does not fit"),
        ([[0, 1]], signature(TYPES.DT_BOOL), "0 is not bool"),
        ([[1, 2]], signature(TYPES.DT_STRING), "1 is not a string"),
        ([[["a"], "b"]], signature(TYPES.DT_STRING), "is not a string"),
        ([[{"b64": "*"}, "b"]], signature(TYPES.DT_STRING), "does not fit"),
        ([[{"c": "a"}, "b"]], signature(TYPES.DT_STRING), "is not a string"),
        ([["\ud800", "b"]], signature(TYPES.DT_STRING), "does not fit"),
        # Keys
        (None, signature(), "without `outputs`"),
        ([[1, 2]], signature(names=("y", "z")), "without `outputs`"),
        ({"y": [[1, 2]]}, signature(names=("y", "z")), "the output 'z'"),
        ({"y": None, "z": [[1, 2]]}, signature(names=("y", "z")), "`outputs`"),
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
        b"",
        b"[1]",
        b"null",
        b'"outputs"',
        b'{"outputs": [[1, 2]]',
        b"\xff\xfe\xfd",
        b"[" * 10**5,
        b'{"predictions": [[1, 2]]}',
    ],
)
def test_what_is_no_answer(content):
    with pytest.raises(client.ServerError, match="^http://host:1 answered"):
        REST.read_prediction(content, signature(), ONE_TEXT)
    with pytest.raises(client.ServerError, match="^http://host:1 answered"):
        REST.read_metadata(content)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"model_spec": {"version": "3"}},
        {"model_spec": {"version": "3"}, "metadata": []},
        {"model_spec": {"version": "3"}, "metadata": {"signature_def": 5}},
        {"model_spec": {}, "metadata": {"signature_def": {}}},
        {
            "model_spec": {"version": "x"},
            "metadata": {"signature_def": {"signature_def": {}}},
        },
        {
            "model_spec": {"version": "3"},
            "metadata": {"signature_def": {"signature_def": {"a": 5}}},
        },
    ],
)
def test_metadata_that_lacks_something(document):
    with pytest.raises(client.ServerError, match="without the signatures"):
        REST.read_metadata(json.dumps(document).encode())


def test_metadata_of_a_later_server():
    version, signatures = REST.read_metadata(
        json.dumps(
            {
                "model_spec": {"version": "3"},
                "metadata": {
                    "signature_def": {
                        "signature_def": {"a": {"what_is_new": 1}},
                    }
                },
            }
        ).encode()
    )
    assert (version, [*signatures]) == (3, ["a"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'["not now"]', r'answered 400: \["not now"\]'),
        (b'{"error": ["not", "now"]}', r'{"error": \["not", "now"\]}'),
        (b'{"error": "not now"}', "answered 400: not now"),
        (b"<html>no</html>", "answered 400: <html>no</html>"),
        (b"\xff", "answered 400: \ufffd"),
        (b"[" * 10**5, r"answered 400: \[+\.\.\.$"),
        (b"", "answered 400: "),
    ],
)
def test_errors_of_any_form(content, message):
    with pytest.raises(client.ServerError, match=message) as caught:
        REST.read_response(400, [], content)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "broken gzip"),
        (gzip.compress(b"x" * 999, mtime=0)[:-5], "cut off"),
        (gzip.compress(b"x" * 10**6, mtime=0), "more than 100000 bytes"),
    ],
)
def test_gzip_that_is_none(content, message, monkeypatch):
    monkeypatch.setattr(rest_transport, "MOST_BYTES", 10**5)
    headers = [(b"Content-Encoding", b"gzip")]
    with pytest.raises(client.ServerError, match=message):
        REST.read_response(200, headers, content)


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
    nan = REST.read_prediction(
        b'{"outputs": [[NaN, -Infinity]]}', signature(), ONE_TEXT
    )
    np.testing.assert_array_equal(nan["y"], [[np.nan, -np.inf]])
    # Of lists without items the declared shape says the rest.
    three = {"text": np.array([b""] * 3, object)}
    empty = read([[], [], []], signature(shape=(-1, -1, 5)), three)["y"]
    assert empty.shape == (3, 0, 5)
    # Without a batch, or with any shape, the number of rows is free.
    assert read([1, 2, 3], signature(shape=(3,)))["y"].shape == (3,)
    assert read([1, 2, 3], signature(shape=None))["y"].shape == (3,)
    assert read(5, signature(shape=()))["y"] == 5


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones([3, 2], np.float32), "3 rows of 'y' for 1"),
        (np.ones([1, 3], np.float32), r"shape \(1, 3\), declared"),
        (np.ones([1, 2], np.float64), "'y' as float64, declared float32"),
        (None, "without the output 'y'"),
    ],
)
def test_grpc_answers_that_do_not_fit(array, message):
    answer = messages.predict_pb2.PredictResponse()
    if array is not None:
        answer.outputs["y"].CopyFrom(messages.to_tensor_proto(array))
    with pytest.raises(client.ServerError, match=message):
        GRPC.read_prediction(answer, signature(), ONE_TEXT)


def test_grpc_answers_that_are_no_arrays():
    answer = messages.predict_pb2.PredictResponse()
    answer.outputs["y"].dtype = TYPES.DT_RESOURCE
    with pytest.raises(client.ServerError, match="a broken array"):
        GRPC.read_prediction(answer, signature(), ONE_TEXT)
    metadata = messages.get_model_metadata_pb2.GetModelMetadataResponse()
    with pytest.raises(client.ServerError, match="without the signatures"):
        GRPC.read_metadata(metadata)
    metadata.metadata["signature_def"].Pack(signature())
    with pytest.raises(client.ServerError, match="without the signatures"):
        GRPC.read_metadata(metadata)


def test_an_answer_that_never_ends(server, connect, monkeypatch):
    monkeypatch.setattr("export.rest_transport.MOST_BYTES", 1000)
    with connect(server.rest_url, "tiny") as connection:
        with pytest.raises(client.ServerError, match="more than 1000 bytes"):
            connection.signatures()


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
        grpc_front(server, answer=answer) as opened,
        connect(opened.url, "tiny") as connection,
    ):
        whole = connection.embed(["a", "b"])
        asked = len(opened.seen)
        later.append(True)
        for _ in range(2):
            answer = connection.embed(["a", "b"])
            np.testing.assert_allclose(answer, whole[:, :2], atol=1e-6)
        # The signatures are asked for once more, and no text twice.
        assert len(opened.seen) == asked + 3
        for ask, message in (
            (connection.embed, "another version meanwhile"),
            (
                lambda texts, **batches: connection.predict(
                    {"text": texts}, **batches
                ),
                "cannot be joined",
            ),
        ):
            later.clear()
            with pytest.raises(ValueError, match=message):
                ask(
                    ["a", "b"], batch_size=1, on_batch=lambda _: later.append(1)
                )


@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_no_inputs(server, protocol, connect):
    with connect(getattr(server, protocol), "tiny") as connection:
        with pytest.raises(client.ServerError):
            connection.predict({}, on_batch=print)


def test_wrong_answers_over_the_wire(server, connect):
    def answer(_, headers, content):
        if ":predict" not in front.seen[-1][1]:
            return 200, headers, content
        return 200, headers, wrong[-1]

    wrong = []
    with rest_front(server, answer=answer) as front:
        with connect(front.url, "tiny") as connection:
            for content, message in (
                (b"<html>Sign in</html>", "not a JSON object: <html>Sign in"),
                (b"{}", "without `outputs`"),
                (b'{"outputs": [[1], [2], [3]]}', "declared"),
            ):
                wrong.append(content)
                with pytest.raises(client.ServerError, match=message):
                    connection.embed(["a"])
            assert connection.requests == 0
