"""REST requests that TensorFlow Serving refuses."""

import gzip
import re

from tests.contract.rest_pair import (
    CORE,
    EVHTTP,
    GZIP,
    HALF,
    HANDLER,
    HANDLER_TEST,
    JSON,
    JSON_TEST,
    KINDS,
    MANAGER,
    MODELS,
    PREDICT,
    STATUS,
    Pair,
    kinds,
)

FIRST = '{"flags": true, "floats": [1], "ints": [1], "texts": "foo"}'
ZIPPED = gzip.compress(b'{"instances": [1.0]}', mtime=0)


def half(values, error, status=400, source=JSON_TEST):
    return Pair(source, f"{HALF}:predict", values, error, status)


def kind(signature, values, error, status=400, source=JSON_TEST):
    return Pair(source, KINDS, kinds(signature, values), error, status)


BAD = [
    # Paths.
    *(
        Pair(source, path, body, "^Malformed request: " + re.escape(asked), 400)
        for source, path, body, asked in (
            (HANDLER_TEST, "/v1/foo", None, "GET /v1/foo"),
            (HANDLER_TEST, "/v1/foo", "", "POST /v1/foo"),
            (HANDLER_TEST, f"{MODELS}/a/b", None, f"GET {MODELS}/a/b"),
            (HANDLER_TEST, MODELS, "", f"POST {MODELS}"),
            (HANDLER_TEST, KINDS, None, f"GET {KINDS}"),
            (HANDLER_TEST, f"{HALF}/metadata", "", f"POST {HALF}/metadata"),
            (HANDLER_TEST, f"{HALF}/versions/x:predict", "{}", "POST"),
            (HANDLER_TEST, f"{HALF}/version/1:predict", "{}", "POST"),
            (HANDLER_TEST, f"{HALF}/label/stable:predict", "{}", "POST"),
            (
                HANDLER_TEST,
                f"{HALF}/versions/1/labels/stable:predict",
                "{}",
                "POST",
            ),
            # The pattern takes any case, what follows it only this one.
            (HANDLER, f"{HALF}:PREDICT", "{}", f"POST {HALF}:PREDICT"),
            # A query belongs to the path.
            (EVHTTP, f"{KINDS}?a=b", "{}", f"POST {KINDS}?a=b"),
        )
    ),
    *(
        Pair(HANDLER, HALF, "", f"^Malformed request: {m}", 400, method=m)
        for m in ("PUT", "DELETE", "PATCH")
    ),
    Pair(HANDLER_TEST, MODELS, None, "^Missing model name in request.$", 400),
    # Models, versions, labels and signatures there are not.
    Pair(
        HANDLER_TEST,
        f"{MODELS}/foo:predict",
        '{"instances": [1]}',
        r"^Servable not found for request: Latest\(foo\)$",
        404,
    ),
    Pair(
        HANDLER_TEST,
        f"{MODELS}/foo/versions/50:predict",
        '{"instances": [1]}',
        r"^Servable not found for request: Specific\(foo, 50\)$",
        404,
    ),
    Pair(
        MANAGER,
        f"{HALF}/versions/7:predict",
        '{"instances": [1]}',
        r"^Servable not found for request: Specific\(half_plus, 7\)$",
        404,
    ),
    Pair(
        HANDLER_TEST,
        f"{HALF}/labels/none:predict",
        '{"instances": [1]}',
        "^Unrecognized servable version label: none$",
        400,
    ),
    Pair(
        CORE,
        f"{MODELS}/foo/labels/stable:predict",
        '{"instances": [1]}',
        "^Unrecognized servable version label: stable$",
        400,
    ),
    half(
        '{"signature_name": "none", "instances": [1]}',
        '^Serving signature name: "none" not found in signature def$',
        source=HANDLER,
    ),
    Pair(
        HANDLER,
        KINDS,
        '{"instances": [1]}',
        '^Serving signature name: "serving_default" not found in signature def',
        400,
    ),
    Pair(
        STATUS,
        f"{MODELS}/foo",
        None,
        "^Could not find any versions of model foo$",
        404,
    ),
    Pair(
        STATUS,
        f"{HALF}/versions/7",
        None,
        "^Could not find version 7 of model half_plus$",
        404,
    ),
    Pair(
        MANAGER,
        f"{MODELS}/foo/metadata",
        None,
        r"^Servable not found for request: Latest\(foo\)$",
        404,
    ),
    # JSON.
    half("", "^JSON Parse error: The document is empty"),
    half("instances = [1]", "^JSON Parse error: Invalid value"),
    half("{1: 2}", "^JSON Parse error: Missing a name for object member."),
    half('{"a" 1}', "^JSON Parse error: Missing a colon after a name of obj"),
    half("{} x", "^Missing 'inputs' or 'instances' key$", source=JSON),
    half('{"a": "b', "^JSON Parse error: Missing a closing quotation mark in"),
    half('{"a": [1}', "^JSON Parse error: "),
    half("[1, 2]", r"^JSON Value: \[1, 2\] Is not object$", source=JSON),
    half('[{"inputs": 1}]', "Is not object$", source=JSON),
    # Of a value at most 256 bytes come back.
    half(
        f'["{"a" * 999}", 1]', "^JSON Value: .{1,1010} Is not obj", source=JSON
    ),
    half(
        f"[{'1, ' * 999} 1]", "^JSON Value: .{255,265} Is not obj", source=JSON
    ),
    # Other numbers and strings than JSON's.
    *(
        half(f'{{"inputs": {value}}}', "^JSON Parse error: ", source=JSON)
        for value in (
            *("1e999", "9" * 400, "01", "1.", ".5", "+1", "nan", "-", "[1,]"),
            *("'a'", '"\n"', r'"\ud800"', r'"\x"', r'"\u12"', "tru", "/**/1"),
        )
    ),
    half("{}", "^Missing 'inputs' or 'instances' key$", source=JSON),
    half(
        '{"signature_name": 100}', "'signature_name' key must be a string val"
    ),
    half('{"instances": 1}', "Expecting 'instances' to be an list/array$"),
    half('{"instances": []}', "No values in 'instances' array$", source=JSON),
    half('{"instances": [1], "inputs": [1]}', "Not formatted correctly expect"),
    *(
        Pair(
            EVHTTP,
            f"{HALF}:predict",
            body,
            "^JSON Parse error: The document is empty",
            400,
            headers=GZIP,
        )
        for body in (b"no gzip", ZIPPED[:-1], ZIPPED + b"x", 2 * ZIPPED)
    ),
    # Types.
    half(
        '{"instances": ["x", "y"]}',
        'Error: INVALID_ARGUMENT: JSON Value: "x" Type: String is not of '
        "expected type: float",
    ),
    half('{"inputs": null}', "^JSON Value: null Type: Null is not of expected"),
    half('{"inputs": true}', "^JSON Value: true Type: True is not of expected"),
    half('{"inputs": {"b64": ""}}', "Type: Object is not of expected type: fl"),
    kind(
        "several", f'"instances": [{FIRST}, 1]', "^Expecting object but got l"
    ),
    kind(
        "long", '"inputs": 0.5', "^JSON Value: 0.5 Type: Number is not of exp"
    ),
    kind(
        "long", '"inputs": 9223372036854775808', "not of expected type: int64"
    ),
    kind(
        "byte", '"inputs": [1, "a"]', '^JSON Value: "a" Type: String is not o'
    ),
    kind(
        "text", '"inputs": 1', "^JSON Value: 1 Type: Number is not of expecte"
    ),
    kind("text", '"inputs": {"b64": "*"}', "^Unable to base64 decode$"),
    kind("text", '"inputs": {"b64": "a"}', "^Unable to base64 decode$"),
    kind(
        "text",
        '"inputs": [{"b64": "", "b64": ""}]',
        "not formatted correctly for base64 data$",
        source=JSON,
    ),
    kind(
        "text",
        '"inputs": [{"b65": ""}]',
        "not formatted correctly for base64 data$",
        source=JSON,
    ),
    kind("byte", '"inputs": 2147483648', "not of expected type: uint8"),
    kind("byte", '"inputs": true', "Type: True is not of expected type: uint8"),
    kind("long", '"inputs": 1.0', "not of expected type: int64"),
    kind("long", '"inputs": NaN', "not of expected type: int64"),
    kind(
        "half",
        '"inputs": 1.0',
        "^Conversion of JSON Value: 1.0 to type: half$",
        501,
        source=JSON,
    ),
    kind(
        "half",
        '"instances": [1.0]',
        "Error: UNIMPLEMENTED: Conversion of JSON Value: 1.0 to type: half",
        source=JSON,
    ),
    kind(
        "as_half",
        '"instances": [1]',
        "^Failed to write JSON value for tensor type: half$",
        source=JSON,
    ),
    # Ragged rows.
    half(
        '{"instances": [[1, 2], [3, 4], [5, 6, 7]]}',
        "^Failed to process element: 2 of 'instances' list. Error: "
        "INVALID_ARGUMENT: Expecting tensor size: 2 but got: 3",
    ),
    half(
        '{"instances": [[1, 2], [[5, 6]]]}',
        r"Error: INVALID_ARGUMENT: Expecting shape \[2\] but got: \[1,2\]",
    ),
    half('{"instances": [1, [1]]}', r"Expecting shape \[\] but got: \[1\]"),
    half(
        '{"inputs": [[1, 2], [3]]}',
        "^Encountered list at unexpected size: 1 at level: 1 expected size: 2$",
        source=JSON,
    ),
    half(
        '{"inputs": [1, [2]]}',
        "^Encountered list at unexpected level: 1 expected < 1$",
        source=JSON,
    ),
    half(
        '{"inputs": [[1], 2]}',
        "^JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected "
        "at level: 2$",
        source=JSON,
    ),
    # Names of inputs.
    half(
        '{"instances": [{"z": 1}]}',
        "^Failed to process element: 0 key: z of 'instances' list. Error: "
        "INVALID_ARGUMENT: JSON object: does not have named input: z",
        source=JSON,
    ),
    half(
        '{"instances": [1, {"x": 1}]}',
        "^Expecting value/list but got object at item 1 of input list$",
    ),
    half(
        '{"inputs": {"z": 1}}',
        "^Missing named input: x in 'inputs' object.$",
        source=JSON,
    ),
    kind(
        "several",
        '"instances": [{"flags": true}]',
        "^Failed to process element: 0 of 'instances' list. JSON object: "
        r"{\n    \"flags\": true\n} keys must be equal to: "
        "flags,floats,ints,texts$",
        source=JSON,
    ),
    kind(
        "several",
        '"instances": [1]',
        "^instances is a plain list, but expecting list of objects as multiple "
        "input tensors required as per tensorinfo_map$",
        source=JSON,
    ),
    kind(
        "several",
        '"inputs": [1]',
        "^inputs is a plain value/list, but expecting an object as multiple "
        "input tensors required as per tensorinfo_map$",
        source=JSON,
    ),
    # Answers that are no rows.
    kind(
        "total",
        '"instances": [1]',
        "^Tensor name: y has no shape information $",
    ),
    kind(
        "unlike",
        '"instances": [1]',
        "^Tensor name: (long|short) has inconsistent batch size: ",
    ),
    # What the model itself refuses.
    kind("limited", '"instances": [50]', "assertion failed", source=PREDICT),
]
