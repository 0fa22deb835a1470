"""Checks of the graph of an export, which run nothing."""

import struct

from flatbuffers import number_types, table
from flatbuffers.encode import Get

from export import messages, session
from export.checks.exported import Exported, Failure
from export.files import digests

_TYPES = messages.types_pb2
# What TF Serving's REST API writes as JSON (json_tensor.cc).
_OUTPUT_TYPES = {
    *(_TYPES.DT_FLOAT, _TYPES.DT_DOUBLE, _TYPES.DT_INT32, _TYPES.DT_INT64),
    *(_TYPES.DT_BOOL, _TYPES.DT_STRING),
}
_METHOD = "tensorflow/serving/predict"
# Placeholders of special tokens follow the vocabulary, see
# `keras_fixedhead.graph_text.placeholders`.
_PLACEHOLDERS = "\U00100000"
# Fields of tensorflow-text 2.20's `FastWordpieceTokenizerConfig`, a FlatBuffer.
_SUFFIX_INDICATOR, _TOKENS, _IS_SUFFIX = 5, 12, 13
_OFFSET_BYTES = 4


def check_ops(exported: Exported) -> str:
    """TF Serving has every op, and none acts outside the model.

    It links TensorFlow's own and those of tensorflow-text
    (`SUPPORTED_TENSORFLOW_OPS` in its `model_servers/BUILD`), which the wheels
    of the same version register too.
    """
    if denied := exported.graph.denied():
        raise Failure("; ".join(denied))
    kinds = {node.op for node in exported.graph.every_node()}
    return f"{len(kinds)} kinds of ops"


def check_xla(exported: Exported) -> str:
    """No function requires XLA, which is off in the model server."""
    nodes = list(exported.graph.every_node())
    for node in nodes:
        if node.attr["_XlaMustCompile"].b:
            raise Failure(f"{node.name} must be compiled by XLA")
    for function in exported.meta_graph.graph_def.library.function:
        if function.attr["_XlaMustCompile"].b:
            name = function.signature.name
            raise Failure(f"{name} must be compiled by XLA")
    marked = {node.op for node in nodes if node.op.startswith("Xla")}
    if marked:
        raise Failure(f"XLA ops: {', '.join(sorted(marked))}")
    return "none"


def check_signatures(exported: Exported) -> str:
    """Every signature has golden answers, an open batch and true types."""
    signatures = exported.signatures
    if session.DEFAULT_SIGNATURE not in signatures:
        raise Failure(f"no signature {session.DEFAULT_SIGNATURE}")
    if signatures.keys() != exported.golden.cases.keys():
        raise Failure(
            f"signatures {sorted(signatures)}, golden answers for "
            f"{sorted(exported.golden.cases)}"
        )
    for name, signature in signatures.items():
        if signature.method_name != _METHOD or signature.defaults:
            raise Failure(
                f"{name} must have the method {_METHOD} and no default inputs"
            )
        for alias, tensor in signature.inputs.items():
            _check_batch(f"{name}: {alias}", tensor)
            _check_input(exported, f"{name}: input {alias}", tensor)
        for alias, tensor in signature.outputs.items():
            _check_batch(f"{name}: {alias}", tensor)
            if tensor.dtype not in _OUTPUT_TYPES:
                raise Failure(
                    f"{name}: output {alias} is {_name_of(tensor.dtype)}, "
                    "which REST cannot carry"
                )
    return ", ".join(sorted(signatures))


def _check_batch(what, tensor):
    shape = tensor.tensor_shape
    if shape.unknown_rank or not shape.dim or shape.dim[0].size != -1:
        raise Failure(f"{what} has no open first dimension")


def _check_input(exported, what, tensor):
    """Compares an input's declaration with its placeholder."""
    node = exported.graph.node(tensor.name)
    declared = tensor.dtype, _sizes(tensor.tensor_shape)
    actual = node.attr["dtype"].type, _sizes(node.attr["shape"].shape)
    if node.op != "Placeholder" or declared != actual:
        raise Failure(
            f"{what} is declared as {_name_of(declared[0])} {declared[1]}; "
            f"the graph has a {node.op}, {_name_of(actual[0])} {actual[1]}"
        )


def _name_of(data_type):
    return _TYPES.DataType.Name(data_type)


def _sizes(shape):
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]


def check_graph(exported: Exported) -> str:
    """The graph is the exported one, in whatever order it is written."""
    if not exported.is_sealed:
        return "exported before there were digests; not compared"
    exported.compare(
        "saved_model_sha256",
        digests.of_saved_model(exported.saved_model),
        "saved_model.pb is not the exported one",
    )
    return "the exported one"


def check_vocabulary(exported: Exported) -> str:
    """Every tokenizer in the graph has the vocabulary of the card."""
    tables = [
        node.attr["value"].tensor
        for node in exported.graph.every_node()
        if node.op == "Const" and node.attr["dtype"].type == _TYPES.DT_UINT8
    ]
    if not tables:
        raise Failure("the graph has no tokenizer")
    for tensor in tables:
        try:
            tokens = _vocabulary(messages.from_tensor_proto(tensor).tobytes())
        except ValueError as error:
            raise Failure(f"a tokenizer's table is broken: {error}") from error
        while tokens and tokens[-1] >= _PLACEHOLDERS:
            del tokens[-1]
        exported.compare(
            "vocabulary_sha256",
            digests.of_vocabulary(tokens),
            f"a tokenizer has other tokens than the card, {len(tokens)}",
        )
    return f"{len(tokens):,} tokens"


def _vocabulary(content):
    """Reads the tokens of a `tensorflow_text.FastWordpieceTokenizer` from its
    table, in the order of their ids."""
    try:
        root = table.Table(
            content, Get(number_types.UOffsetTFlags.packer_type, content, 0)
        )
        suffix = root.String(root.Pos + _field(root, _SUFFIX_INDICATOR))
        tokens, flags = (
            (root.Vector(offset), root.VectorLen(offset))
            for offset in (_field(root, _TOKENS), _field(root, _IS_SUFFIX))
        )
        if tokens[1] != flags[1] or flags[0] + flags[1] > len(content):
            raise ValueError(f"{tokens[1]} tokens and {flags[1]} flags")
        return [
            (
                (suffix if content[flags[0] + i] else b"")
                + root.String(tokens[0] + _OFFSET_BYTES * i)
            ).decode()
            for i in range(tokens[1])
        ]
    except (struct.error, IndexError, TypeError) as error:
        raise ValueError(f"an offset leads out of it ({error})") from error


def _field(root, number):
    offset = root.Offset(4 + 2 * number)  # two entries come before the fields
    if not offset:
        raise ValueError(f"field {number} is missing")
    return offset
