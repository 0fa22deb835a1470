"""REST requests and what TensorFlow Serving answers: those of `rest.txt`, and
odd ones."""

import contextlib
import gzip
import http.client
import json
import pathlib
import re

import pytest
import requests

MODELS = "/v1/models"
HALF = f"{MODELS}/half_plus"
PREDICT = f"{HALF}:predict"
GZIP = {"Content-Encoding": "gzip"}
ZIPPED = gzip.compress(b'{"instances": [1.0]}', mtime=0)


def read_pairs():
    """Yields method, path, body, status and answer of `rest.txt`."""
    text = pathlib.Path(__file__).with_name("rest.txt").read_text("utf-8")
    method = path = body = None
    for line in text.splitlines():
        first, _, rest = line.partition(" ")
        if first == ">":
            body = rest
        elif first.isdigit():
            yield pytest.param(
                method, path, body, int(first), rest, id=f"{path} {body}"[:60]
            )
            body = None
        elif first.isalpha():
            method, path = first, rest


def ask(rest_url, method, path, body=None, headers=None):
    if isinstance(body, str):
        body = body.encode()
    return requests.request(
        method, rest_url + path, data=body, headers=headers, timeout=60
    )


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
    ("method", "path", "body", "status", "answer"), list(read_pairs())
)
def test_answers(rest_url, method, path, body, status, answer):
    check(ask(rest_url, method, path, body), status, answer)


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
    check(ask(rest_url, "POST", PREDICT, body), status, answer)


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
    check(ask(rest_url, "POST", PREDICT, body, GZIP), status, answer)


def test_version_of_more_than_64_bits(rest_url):
    # `http_rest_api_handler_test.cc`; there the answer has no body.
    path = f"{HALF}/versions/{2**64 - 1}:predict"
    assert ask(rest_url, "POST", path, "{}").status_code == 400


@pytest.mark.parametrize("path", ["/", "/statuspage", "/v2/models"])
def test_paths_of_no_api(rest_url, path):
    # `evhttp_server.cc` answers them itself, with a page of libevent's.
    assert ask(rest_url, "GET", path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
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
        ("GET", f"{MODELS}/a|b", {}, 400),
        ("GET", f"{MODELS}/a%zz", {}, 400),
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


def test_metadata(rest_url):
    # `http_rest_api_util.cc`: names as in the messages, numbers as strings.
    response = ask(rest_url, "GET", f"{HALF}/labels/stable/metadata")
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
