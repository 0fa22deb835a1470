"""REST calls: what TF Serving answers, also to bad requests.

Expected statuses and texts are from TF Serving's `json_tensor_test.cc` and
`http_rest_api_handler_test.cc`, or from the sources they test.
"""

import base64
import concurrent.futures
import json
import socket

import numpy as np
import pytest
import requests

from export import serve

TEXT = "open the file"
IDS = {"token_ids": [2, 7, 3], "padding_mask": [1, 1, 1]}


def post(server, body, path="tiny:predict"):
    """Posts a body; returns the status and the parsed answer."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    url = f"{server.rest_url}/v1/models/{path}"
    response = requests.post(url, data=body, timeout=30)
    assert response.headers["Content-Type"] == "application/json"
    return response.status_code, response.json()


@pytest.fixture(scope="module")
def expected(embedder):
    """The Keras model's embedding of TEXT."""
    return np.array(embedder(embedder.preprocessor([TEXT])))


def test_rows_and_columns(server, expected):
    encoded = {"b64": base64.b64encode(TEXT.encode()).decode()}
    for body, key in (
        ({"instances": [TEXT]}, "predictions"),
        ({"instances": [{"text": TEXT}]}, "predictions"),
        ({"instances": [encoded]}, "predictions"),
        ({"instances": [{"text": encoded}]}, "predictions"),
        ({"inputs": [TEXT]}, "outputs"),
        ({"inputs": {"text": [TEXT]}}, "outputs"),
        ({"inputs": {"text": [encoded]}, "signature_name": ""}, "outputs"),
    ):
        status, answer = post(server, body)
        assert status == 200, answer
        assert answer.keys() == {key}
        np.testing.assert_allclose(answer[key], expected, atol=1e-5)


def test_versions_and_signatures(server, expected, embedder):
    body = {"instances": [TEXT], "signature_name": "query"}
    status, answer = post(server, body, "tiny/versions/3:predict")
    inputs = embedder.preprocessor(["query: " + TEXT])
    np.testing.assert_allclose(
        answer["predictions"], embedder(inputs), atol=1e-5
    )
    assert np.abs(answer["predictions"] - expected).max() > 1e-3


def test_several_inputs(server, embedder):
    row = {**IDS, "segment_ids": [0, 0, 0]}
    body = {"instances": [row, row], "signature_name": "from_token_ids"}
    status, answer = post(server, body)
    inputs = {name: np.array([ids] * 2) for name, ids in row.items()}
    np.testing.assert_allclose(
        answer["predictions"], embedder(inputs), atol=1e-5
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"{", "JSON Parse error"),
        (b"[" * 100_000, "JSON Parse error"),
        (b'{"instances": [' + b"9" * 5000 + b"]}", ""),
        ([1], "Is not object"),
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"instances": 1}, "Excepting 'instances' to be an list/array"),
        ({"instances": []}, "No values in 'instances' array"),
        ({"instances": [""], "inputs": [""]}, "expecting only one of"),
        ({"instances": [""], "signature_name": 1}, "must be a string value"),
        ({"instances": [""], "signature_name": "no"}, "not found in signature"),
        ({"instances": [1.5]}, "is not of expected type: string"),
        ({"instances": [None]}, "Type: Null is not of expected type: string"),
        ({"instances": ["", {"text": ""}]}, "but got object at item 1"),
        ({"instances": [{"text": ""}, ""]}, "but got list at item 1"),
        ({"instances": [{"other": ""}]}, "does not have named input: other"),
        ({"instances": [{"b64": "*"}]}, "Unable to base64 decode"),
        ({"instances": ["\ud800"]}, "surrogate pair in string is invalid"),
        ({"instances": ["", [""]]}, "Expecting shape [] but got: [1]"),
        (
            {"instances": [[""], ["", ""]]},
            "Expecting tensor size: 1 but got: 2",
        ),
        ({"inputs": [["", ""], [""]]}, "unexpected size: 1 at level: 1"),
        ({"inputs": ["", [""]]}, "list at unexpected level: 1 expected < 1"),
        ({"inputs": [[""], ""]}, "found at incorrect level: 2 in the JSON DOM"),
        ({"inputs": {"other": [""]}}, "Missing named input: text"),
        ({"inputs": ""}, "is not compatible with expected shape"),
        ({"inputs": [[""]]}, "is not compatible with expected shape"),
        ({"instances": [{**IDS, "segment_ids": [0, 0.5, 0]}]}, "named input"),
    ],
)
def test_bad_requests(server, body, message):
    status, answer = post(server, body)
    assert status == 400
    assert answer.keys() == {"error"}
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({**IDS, "segment_ids": [0, 0.5, 0]}, "0.5 Type: Number is not of"),
        ({**IDS, "segment_ids": [0, True, 0]}, "Type: True is not of"),
        ({**IDS, "segment_ids": [0, 2**31, 0]}, "expected type: int32"),
        (IDS, "must only have keys: padding_mask,segment_ids,token_ids"),
        ({**IDS, "segment_ids": [0, 5, 0]}, "segment_ids must be from 0 to 1"),
        ([1, 2, 3], "instances is a plain list"),
    ],
)
def test_bad_numbers(server, inputs, message):
    body = {"signature_name": "from_token_ids", "instances": [inputs]}
    status, answer = post(server, body)
    assert status == 400
    assert message in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/v1/models/no:predict", 404, "request: Latest(no)"),
        (
            "POST",
            "/v1/models/tiny/versions/7:predict",
            404,
            "Servable not found for request: Specific(tiny, 7)",
        ),
        (
            "POST",
            "/v1/models/tiny/labels/stable:predict",
            400,
            "Unrecognized servable version label: stable",
        ),
        (
            "POST",
            f"/v1/models/tiny/versions/{10**30}:predict",
            400,
            "Failed to convert version",
        ),
        ("POST", "/v1/models/tiny:classify", 501, "classify"),
        ("POST", "/v1/models/tiny", 400, "Malformed request: POST /v1/models"),
        ("GET", "/v1/models/tiny:predict", 400, "Malformed request: GET"),
        ("PUT", "/v1/models/tiny", 400, "Malformed request: PUT"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        (
            "GET",
            "/v1/models/no",
            404,
            "Could not find any versions of model no",
        ),
        (
            "GET",
            "/v1/models/tiny/versions/7",
            404,
            "Could not find version 7 of model tiny",
        ),
        ("GET", "/v1/models/no/metadata", 404, "request: Latest(no)"),
    ],
)
def test_bad_paths(server, method, path, status, message):
    body = json.dumps({"instances": [TEXT]}) if method == "POST" else None
    response = requests.request(
        method, server.rest_url + path, data=body, timeout=30
    )
    assert response.status_code == status
    assert message in response.json()["error"]


def test_other_paths_are_not_found(server):
    response = requests.get(server.rest_url + "/metrics", timeout=30)
    assert (response.status_code, response.content) == (404, b"")


def test_status_and_metadata(server):
    url = f"{server.rest_url}/v1/models/tiny"
    response = requests.get(url, timeout=30)
    assert response.json() == {
        "model_version_status": [
            {
                "version": "3",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    assert response.headers["Server"] == serve.IDENT
    metadata = requests.get(f"{url}/metadata", timeout=30).json()
    assert metadata["model_spec"]["version"] == "3"
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    text = signatures["serving_default"]["inputs"]["text"]
    assert text["dtype"] == "DT_STRING"
    assert text["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]


def test_answers_survive_bad_neighbours(server, expected):
    def ask(number):
        body = {"instances": [TEXT if number % 3 else 1.5]}
        return number, *post(server, body)

    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        for number, status, answer in pool.map(ask, range(43)):
            assert status == (200 if number % 3 else 400)
            if status == 200:
                np.testing.assert_allclose(
                    answer["predictions"], expected, atol=1e-5
                )


def test_hangs_up_and_garbage(server, expected):
    host, port = server.rest_url.removeprefix("http://").split(":")
    for sent in (
        b"",
        b"\x00" * 99,
        b"POST /v1/models/tiny:predict HTTP/1.1\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(sent)
    assert post(server, {"instances": [TEXT]})[0] == 200
