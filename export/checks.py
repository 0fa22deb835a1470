"""What an exported SavedModel must do, each check a function of its folder.

`export.verify` runs them in a child process, since a check may crash it:
`python -m export.checks FOLDER NAME...` prints a JSON line as each starts and
as each ends. Nothing here imports TensorFlow's Python.
"""

import functools
import json
import pathlib
import sys

import numpy as np

from export import messages, session
from export.files import card, golden, warmup

# Greatest difference from the Keras model, per value, relative to the largest
# value where that is above 1. Half precision and int8 round at every layer.
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2, "int8": 3e-2}
# What models answer at padding, where there is no token.
PADDING = -1e9
SIZE_LIMIT = 1.02  # bytes of variables on disk per byte of parameters
# A checkpoint also holds the names of its variables.
_CHECKPOINT_OVERHEAD = 32 * 1024
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # in the core's
# What TF Serving's REST API writes as JSON (json_tensor.cc).
_OUTPUT_TYPES = {
    messages.types_pb2.DT_FLOAT,
    messages.types_pb2.DT_DOUBLE,
    messages.types_pb2.DT_INT32,
    messages.types_pb2.DT_INT64,
    messages.types_pb2.DT_BOOL,
    messages.types_pb2.DT_STRING,
}
_INVALID = messages.error_codes_pb2.INVALID_ARGUMENT


class Failure(Exception):
    """A check that found the model wrong; the message says how."""


@functools.cache
def _meta_graph(folder):
    content = (folder / "saved_model.pb").read_bytes()
    saved = messages.saved_model_pb2.SavedModel.FromString(content)
    return saved.meta_graphs[0]


@functools.cache
def _session(folder):
    return session.SavedModelSession(folder)


def _nodes(folder):
    graph = _meta_graph(folder).graph_def
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def scale(outputs):
    """The largest size of the numbers of `{output: array}`, at least 1."""
    largest = 1.0
    for array in outputs.values():
        if array.dtype.kind == "f":
            sizes = np.abs(array[array != PADDING])
            largest = max(largest, sizes.max(initial=0.0))
    return float(largest)


def check_files(folder):
    """The files that a model server and this gate read are there."""
    wanted = (
        "saved_model.pb",
        "variables/variables.index",
        golden.FILE,
        warmup.FILE,
        card.FILE,
    )
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise Failure(f"missing: {', '.join(missing)}")
    return f"{len(wanted)} files"


def check_signatures(folder):
    """Every signature is golden, its batch open and first everywhere."""
    signatures = dict(_meta_graph(folder).signature_def)
    signatures.pop("__saved_model_init_op", None)
    if session.DEFAULT_SIGNATURE not in signatures:
        raise Failure(f"no signature {session.DEFAULT_SIGNATURE}")
    if signatures.keys() != golden.load(folder).keys():
        raise Failure(
            f"signatures {sorted(signatures)}, golden answers for "
            f"{sorted(golden.load(folder))}"
        )
    for name, signature in signatures.items():
        for alias, tensor in (
            *signature.inputs.items(),
            *signature.outputs.items(),
        ):
            shape = tensor.tensor_shape
            if shape.unknown_rank or not shape.dim or shape.dim[0].size != -1:
                raise Failure(f"{name}: {alias} has no open first dimension")
    return ", ".join(sorted(signatures))


def check_output_types(folder):
    """Outputs have types that REST carries, and no half precision."""
    for name, signature in _meta_graph(folder).signature_def.items():
        for alias, tensor in signature.outputs.items():
            if alias != "__saved_model_init_op" and (
                tensor.dtype not in _OUTPUT_TYPES
            ):
                kind = messages.types_pb2.DataType.Name(tensor.dtype)
                raise Failure(f"{name}: output {alias} is {kind}")
    return "all can be written as JSON"


def check_ops(folder):
    """Every op is one that the model server links, and none is Python's.

    It links TensorFlow's own and those of tensorflow-text
    (`SUPPORTED_TENSORFLOW_OPS` in its `model_servers/BUILD`), which are what
    the wheels of the same version register.
    """
    found = {node.op for node in _nodes(folder)}
    functions = {
        function.signature.name
        for function in _meta_graph(folder).graph_def.library.function
    }
    unknown = sorted(found - functions - session.known_ops())
    if unknown:
        raise Failure(f"ops the server has not: {', '.join(unknown)}")
    python = sorted(found & _PYTHON_OPS)
    if python:
        raise Failure(f"ops of Python: {', '.join(python)}")
    return f"{len(found)} kinds of ops"


def check_xla(folder):
    """No function asks for XLA, which the model server has off."""
    graph = _meta_graph(folder).graph_def
    for owner in (*_nodes(folder), *graph.library.function):
        if owner.attr["_XlaMustCompile"].b:
            name = getattr(owner, "name", None) or owner.signature.name
            raise Failure(f"{name} must be compiled by XLA")
    marked = sorted(n.op for n in _nodes(folder) if n.op.startswith("Xla"))
    if marked:
        raise Failure(f"XLA ops: {', '.join(marked)}")
    return "none"


def check_weights_once(folder):
    """The variables on disk are no larger than the model's parameters."""
    parameters = card.load(folder)["parameter_bytes"]
    stored = sum(
        path.stat().st_size
        for path in (folder / "variables").glob("variables.data-*")
    )
    if stored > SIZE_LIMIT * parameters + _CHECKPOINT_OVERHEAD:
        raise Failure(
            f"{stored:,} bytes of variables for {parameters:,} bytes of "
            f"parameters ({stored / parameters:.2f}x)"
        )
    return f"{stored / parameters:.4f}x the parameter bytes"


def check_load(folder):
    """The C++ loader takes the folder and finds every variable."""
    for name, (inputs, _) in golden.load(folder).items():
        first = {key: array[:1] for key, array in inputs.items()}
        _session(folder).run(first, name)
    return f"{len(_session(folder).signatures)} signatures"


def check_golden(folder):
    """Every signature answers as the padded Keras model did."""
    tolerance = TOLERANCES[card.load(folder)["dtype"]]
    worst = 0.0
    for name, (inputs, expected) in golden.load(folder).items():
        answers = _session(folder).run(inputs, name)
        if answers.keys() != expected.keys():
            raise Failure(
                f"{name} answers {sorted(answers)}, the Keras model "
                f"{sorted(expected)}"
            )
        for output, array in expected.items():
            if answers[output].shape != array.shape:
                raise Failure(
                    f"{name}: {output} has shape {answers[output].shape}, "
                    f"the Keras model's {array.shape}"
                )
            if array.dtype.kind != "f":
                if not np.array_equal(answers[output], array):
                    raise Failure(f"{name}: {output} is not the Keras model's")
                continue
            difference = np.abs(answers[output] - array).max()
            difference = float(difference) / scale({output: array})
            # `not <=` so that NaN fails too.
            if not difference <= tolerance:
                raise Failure(
                    f"{name}: {output} is {difference:.1e} from the Keras "
                    f"model's, more than {tolerance:.0e}"
                )
            worst = max(worst, difference)
    return f"largest difference {worst:.1e}"


def check_warmup(folder):
    """Every warm-up request is answered."""
    replayed = warmup.read(folder)
    for request in replayed:
        inputs = {
            name: messages.from_tensor_proto(proto)
            for name, proto in request.inputs.items()
        }
        _session(folder).run(inputs, request.model_spec.signature_name)
    if not 0 < len(replayed) <= 1000:
        raise Failure(f"{len(replayed)} requests; from 1 to 1000 are allowed")
    return f"{len(replayed)} requests"


def _text_signatures(folder):
    """Names of the signatures whose every input is a string."""
    return [
        name
        for name, signature in _session(folder).signatures.items()
        if all(
            tensor.dtype == messages.types_pb2.DT_STRING
            for tensor in signature.inputs.values()
        )
    ]


def _feed_text(folder, texts):
    """Feeds the same array as every input of every text signature."""
    for name in _text_signatures(folder):
        inputs = _session(folder).signatures[name].inputs
        yield name, _session(folder).run(dict.fromkeys(inputs, texts), name)


def _check_refused(folder, texts):
    try:
        for name, _ in _feed_text(folder, texts):
            raise Failure(f"{name} answers it")
    except session.StatusError as error:
        if error.code != _INVALID:
            raise Failure(f"refused with {error}") from error
        return "refused as INVALID_ARGUMENT"
    return "no text signature"


def _check_answered(folder, *texts):
    batch = np.array(texts, dtype=object)
    for name, answers in _feed_text(folder, batch):
        for output, array in answers.items():
            if array.shape[:1] != batch.shape:
                raise Failure(f"{name}: {output} has shape {array.shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Failure(f"{name}: {output} is not finite")
    return "answered"


def check_scalar_text(folder):
    """A text that is no list is refused; REST's `"inputs": "..."` makes it."""
    return _check_refused(folder, np.array(b"text", dtype=object))


def check_nested_text(folder):
    """A list of lists of texts is refused."""
    return _check_refused(folder, np.array([[b"text"]], dtype=object))


def check_empty_batch(folder):
    """No text gives no answer, not an error."""
    return _check_answered(folder)


def check_empty_text(folder):
    """Empty texts have finite answers."""
    return _check_answered(folder, b"", b"")


def check_long_text(folder):
    """A text of a megabyte is cut, and answered."""
    return _check_answered(folder, b"word " * 200_000, b"w" * 1_000_000)


def check_invalid_utf8(folder):
    """Bytes that are no UTF-8 are answered."""
    return _check_answered(folder, b"\xff\xfe\x80", b"\xc3", b"ok \xed\xa0\x80")


def check_unlike_numbers(folder):
    """Two texts for one are refused where a signature takes pairs."""
    tried = 0
    for name in _text_signatures(folder):
        first, *others = _session(folder).signatures[name].inputs
        if not others:
            continue
        tried += 1
        inputs = dict.fromkeys(others, np.array([b"a"], dtype=object))
        inputs[first] = np.array([b"a", b"b"], dtype=object)
        try:
            _session(folder).run(inputs, name)
        except session.StatusError as error:
            if error.code != _INVALID:
                raise Failure(f"{name} refused with {error}") from error
        else:
            raise Failure(f"{name} answers two texts for one")
    return "refused as INVALID_ARGUMENT" if tried else "no signature of pairs"


def check_wrong_ids(folder):
    """Ids, lengths and shapes that the tables do not have are refused."""
    tried = 0
    for name, (inputs, _) in golden.load(folder).items():
        if "token_ids" not in inputs:
            continue
        ids = inputs["token_ids"]
        limit = card.load(folder)
        long = [(0, 0), (0, limit["max_sequence_length"] + 1 - ids.shape[1])]
        segments = inputs["segment_ids"] + limit["num_segments"]
        for hostile in (
            {**inputs, "token_ids": ids - limit["vocabulary_size"]},
            {**inputs, "token_ids": ids + limit["vocabulary_size"]},
            {**inputs, "segment_ids": segments},
            {**inputs, "padding_mask": inputs["padding_mask"][:, :-1]},
            {key: np.pad(array, long) for key, array in inputs.items()},
            {key: array[0] for key, array in inputs.items()},
            {key: array[0, 0] for key, array in inputs.items()},
            {key: array[None] for key, array in inputs.items()},
        ):
            tried += 1
            try:
                _session(folder).run(hostile, name)
            except session.StatusError as error:
                if error.code != _INVALID:
                    raise Failure(f"{name} refused with {error}") from error
            else:
                raise Failure(f"{name} answers ids that it has no table for")
    if not tried:
        return "no signature takes ids"
    return f"{tried} requests refused as INVALID_ARGUMENT"


# The order of the table; those from `load` on need a loaded model.
STATIC = {
    "files": check_files,
    "signatures": check_signatures,
    "output types": check_output_types,
    "ops": check_ops,
    "xla": check_xla,
    "weights stored once": check_weights_once,
}
RUNNING = {
    "golden answers": check_golden,
    "warm-up": check_warmup,
    "scalar text": check_scalar_text,
    "nested text": check_nested_text,
    "empty batch": check_empty_batch,
    "empty text": check_empty_text,
    "1 MB text": check_long_text,
    "invalid UTF-8": check_invalid_utf8,
    "unlike numbers": check_unlike_numbers,
    "wrong ids": check_wrong_ids,
}
CHECKS = {**STATIC, "load": check_load, **RUNNING}


def main(folder, names):
    """Runs the named checks in order and reports each as JSON lines."""
    for name in names:
        print(json.dumps({"name": name}), flush=True)
        try:
            passed, detail = True, CHECKS[name](folder)
        # Whatever a broken export raises is that check's result.
        except Exception as error:
            passed, detail = False, str(error) or repr(error)
        result = {"name": name, "passed": passed, "detail": detail}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
