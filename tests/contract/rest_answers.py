"""REST requests that TensorFlow Serving answers."""

import gzip

from tests.contract.rest_pair import (
    EVHTTP,
    GZIP,
    HALF,
    HANDLER,
    HANDLER_TEST,
    JSON,
    JSON_TEST,
    KINDS,
    Pair,
    kinds,
)

SEVERAL = """
    {"flags": true, "floats": [1.5, NaN], "ints": [1], "texts": "foo"},
    {"flags": false, "floats": [2, -Infinity], "ints": [-2], "texts": "bar"}
"""

GOOD = [
    # Rows and columns; the newest version, a version, a label.
    Pair(
        HANDLER_TEST,
        f"{HALF}:predict",
        '{"instances": [[1.0, 2.0], [3.0, 4.0]]}',
        '{"predictions": [[3.5, 4.0], [4.5, 5.0]]}',
    ),
    Pair(
        HANDLER_TEST,
        f"{HALF}/versions/1:predict",
        '{"instances": [1.0, 2.0]}',
        '{"predictions": [2.5, 3.0]}',
    ),
    Pair(
        HANDLER_TEST,
        f"{HALF}/labels/stable:predict",
        '{"instances": [1.0, 2.0]}',
        '{"predictions": [2.5, 3.0]}',
    ),
    Pair(
        HANDLER_TEST,
        f"{HALF}/labels/canary:predict",
        '{"instances": [1.0, 2.0]}',
        '{"predictions": [3.5, 4.0]}',
    ),
    Pair(
        HANDLER_TEST,
        f"{HALF}/versions/1:predict",
        '{"signature_name": "serving_default", "inputs": [3.0, 4.0]}',
        '{"outputs": [3.5, 4.0]}',
    ),
    Pair(
        HANDLER,
        f"{HALF}:predict",
        '{"signature_name": "", "inputs": {"x": 3.0}}',
        '{"outputs": 4.5}',
    ),
    Pair(
        HANDLER,
        "/V1/Models/half%5Fplus/Versions/1:predict",
        '{"instances": [{"x": 1.0}]}',
        '{"predictions": [2.5]}',
    ),
    Pair(
        EVHTTP,
        f"{HALF}:predict",
        gzip.compress(b'{"instances": [1.0]}', mtime=0),
        '{"predictions": [3.5]}',
        headers=GZIP,
    ),
    # Numbers.
    Pair(
        JSON_TEST,
        f"{HALF}/versions/1:predict",
        '{"instances": [1, 2.0, 5.003, 0, NaN, Infinity, -Infinity]}',
        '{"predictions": [2.5, 3.0, 4.5015, 2.0, NaN, Infinity, -Infinity]}',
    ),
    Pair(
        JSON_TEST,
        f"{HALF}/versions/1:predict",
        '{"instances": [17999996.0, 6e-7, 16777215]}',
        '{"predictions": [9e+06, 2.00000024, 8388610.0]}',
    ),
    # Large integers lose digits, and what a type cannot hold is infinite.
    Pair(
        JSON_TEST,
        f"{HALF}/versions/1:predict",
        '{"instances": [1435774380, 1435774380.0, 18446744073709551616]}',
        '{"predictions": [717887168.0, 717887168.0, 9.22337204e+18]}',
    ),
    Pair(
        JSON_TEST,
        f"{HALF}/versions/1:predict",
        '{"inputs": [1e39, -1.7976931348623157e308, 2.3e-308, 1e-999]}',
        '{"outputs": [Infinity, -Infinity, 2.0, 2.0]}',
    ),
    Pair(
        JSON,
        KINDS,
        kinds("double", '"inputs": [9007199254740993, 1.8e308, -1.8e308]'),
        '{"outputs": [9007199254740992.0, Infinity, -Infinity]}',
    ),
    Pair(
        JSON,
        KINDS,
        kinds("double", '"inputs": [Inf, -Inf, -NaN, -Infinity, -0.0, 1E2]'),
        '{"outputs": [Infinity, -Infinity, NaN, -Infinity, -0.0, 100.0]}',
    ),
    # Bytes are read as 32-bit integers and wrap around, as `tensor.cc` casts.
    Pair(
        JSON,
        KINDS,
        kinds("byte", '"inputs": [256, -1, 2147483647]'),
        '{"outputs": [0, 255, 255]}',
    ),
    # What is around the object.
    Pair(
        JSON,
        f"{HALF}:predict",
        '\ufeff \r\n\t{"inputs": 1} {]',
        '{"outputs": 3.5}',
    ),
    Pair(
        JSON_TEST,
        f"{HALF}:predict",
        f'{{"inputs": 1, "nested": {"[" * 500 + "]" * 500}}}',
        '{"outputs": 3.5}',
    ),
    # The first of two equal names counts; rows take each value in turn.
    Pair(
        JSON,
        KINDS,
        kinds("long", '"inputs": {"x": 1, "x": 2}, "inputs": 3, "inputs": "a"'),
        '{"outputs": 1}',
    ),
    Pair(
        JSON,
        KINDS,
        '{"signature_name": "long", "signature_name": 7, "inputs": 1}',
        '{"outputs": 1}',
    ),
    Pair(
        JSON,
        KINDS,
        kinds("long", '"instances": [{"x": 1, "x": 2}, {"x": 3}]'),
        '{"predictions": [1, 2]}',
    ),
    Pair(
        JSON,
        KINDS,
        kinds("double", '"inputs": [0.1, 3, 1e300, 9007199254740991]'),
        '{"outputs": [0.1, 3.0, 1e300, 9007199254740991.0]}',
    ),
    Pair(
        JSON,
        KINDS,
        kinds("long", '"inputs": [9223372036854775807, -1]'),
        '{"outputs": [9223372036854775807, -1]}',
    ),
    Pair(
        JSON,
        KINDS,
        kinds("byte", '"inputs": [[255], [0]]'),
        '{"outputs": [[255], [0]]}',
    ),
    # Strings and bytes.
    Pair(
        JSON_TEST,
        KINDS,
        kinds("text", '"instances": [{"b64": "aGVsbG8="}, "\\u00e9"]'),
        '{"predictions": [{"b64": "aGVsbG8="}, {"b64": "w6k="}]}',
    ),
    Pair(
        JSON_TEST,
        KINDS,
        kinds("text", '"instances": [[{"b64": "/+8"}], [{"b64": "/ +8="}]]'),
        '{"predictions": [[{"b64": "/+8="}], [{"b64": "/+8="}]]}',
    ),
    Pair(
        JSON_TEST,
        KINDS,
        kinds("text", '"inputs": {"b64": "aGVsbG8="}'),
        '{"outputs": {"b64": "aGVsbG8="}}',
    ),
    Pair(
        JSON,
        KINDS,
        kinds("text", r'"inputs": ["\ud83d\ude00\u0000\/", {"b64": "/+8"}]'),
        '{"outputs": [{"b64": "8J+YgAAv"}, {"b64": "/+8="}]}',
    ),
    # Several inputs and outputs.
    Pair(
        JSON_TEST,
        KINDS,
        kinds(
            "several",
            """"inputs": {"flags": [], "ints": [[]], "texts": [], "floats":
               [[9000000, 999999, 0.5, 0.0003, 0.00003, 555557.5]], "z": 1}""",
        ),
        """{"outputs": {"not_flags": [], "ints_out": [[]], "texts_out": [],
            "floats_out": [[9e+06, 999999.0, 0.5, 0.0003, 3e-05, 555557.5]],
            "texts_bytes": []}}""",
    ),
    Pair(
        JSON_TEST,
        KINDS,
        kinds("several", f'"instances": [{SEVERAL}]'),
        """{"predictions": [
            {"not_flags": false, "floats_out": [1.5, NaN], "ints_out": [1],
             "texts_out": "foo", "texts_bytes": {"b64": "Zm9v"}},
            {"not_flags": true, "floats_out": [2.0, -Infinity],
             "ints_out": [-2], "texts_out": "bar",
             "texts_bytes": {"b64": "YmFy"}}
        ]}""",
    ),
    Pair(
        JSON_TEST,
        KINDS,
        kinds(
            "several",
            """"inputs": {"flags": [true], "floats": [[0.1, 0.3333333]],
               "ints": [[]], "texts": ["\\u897f"]}""",
        ),
        """{"outputs": {"not_flags": [false],
            "floats_out": [[0.1, 0.333333313]],
            "ints_out": [[]], "texts_out": ["\u897f"],
            "texts_bytes": [{"b64": "6KW/"}]}}""",
    ),
    Pair(JSON, KINDS, kinds("total", '"inputs": [1, 2.5]'), '{"outputs": 3.5}'),
    Pair(
        JSON,
        KINDS,
        kinds("unlike", '"inputs": [1]'),
        '{"outputs": {"long": [1.0, 1.0], "short": [1.0]}}',
    ),
    Pair(JSON, KINDS, kinds("none", '"inputs": [1]'), '{"outputs": []}'),
    Pair(
        JSON_TEST,
        KINDS,
        kinds("none", '"instances": [1]'),
        '{"predictions": []}',
    ),
    # What a model's status is, for all of its versions or one.
    Pair(
        HANDLER_TEST,
        f"{HALF}/versions/1",
        None,
        """{"model_version_status": [{"version": "1", "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""}}]}""",
    ),
    *(
        Pair(
            HANDLER_TEST,
            path,
            None,
            """{"model_version_status": [
                {"version": "2", "state": "AVAILABLE",
                 "status": {"error_code": "OK", "error_message": ""}},
                {"version": "1", "state": "AVAILABLE",
                 "status": {"error_code": "OK", "error_message": ""}}]}""",
        )
        # A label is passed over: `get_model_status_impl.cc`.
        for path in (HALF, f"{HALF}/labels/stable", f"{HALF}/METADATA")
    ),
]
