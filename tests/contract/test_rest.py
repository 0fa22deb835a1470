"""REST requests and what TensorFlow Serving answers."""

import contextlib
import http.client
import json
import re

import pytest
import requests

from tests.contract import rest_answers, rest_refusals
from tests.contract.rest_pair import (
    EVHTTP_SERVER,
    HALF,
    HANDLER_TEST,
    MODELS,
    Pair,
)


def ask(rest_url, pair):
    body = pair.body.encode() if isinstance(pair.body, str) else pair.body
    method = pair.method or ("GET" if body is None else "POST")
    return requests.request(
        method,
        rest_url + pair.path,
        data=body,
        headers=pair.headers,
        timeout=60,
    )


def title(pair):
    if isinstance(pair, Pair):
        return f"{pair.path} {pair.body}"[:60]


def canonical(text):
    """JSON with sorted names, in which NaN equals NaN and 1 is not 1.0."""
    return json.dumps(json.loads(text), sort_keys=True)


@pytest.mark.parametrize("pair", rest_answers.GOOD, ids=title)
def test_answers(rest_url, pair):
    response = ask(rest_url, pair)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/json"
    assert canonical(response.content) == canonical(pair.answer)


@pytest.mark.parametrize("pair", rest_refusals.BAD, ids=title)
def test_refuses(rest_url, pair):
    response = ask(rest_url, pair)
    assert response.status_code == pair.status, response.text
    assert response.headers["Content-Type"] == "application/json"
    answer = response.json()
    assert answer.keys() == {"error"}
    assert re.search(pair.answer, answer["error"]), answer["error"]


def test_version_of_more_than_64_bits(rest_url):
    # `http_rest_api_handler_test.cc`; there the answer has no body.
    pair = Pair(HANDLER_TEST, f"{HALF}/versions/{2**64 - 1}:predict", "{}", "")
    assert ask(rest_url, pair).status_code == 400


def test_paths_of_no_api(rest_url):
    # `evhttp_server.cc` answers them itself, with a page of libevent's.
    for path in ("/", "/statuspage", "/v2/models"):
        assert (
            ask(rest_url, Pair(EVHTTP_SERVER, path, None, "")).status_code
            == 404
        )


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
    pair = Pair(HANDLER_TEST, f"{HALF}/labels/stable/metadata", None, "")
    response = ask(rest_url, pair)
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
