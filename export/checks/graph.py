"""Checks of the graph of an export, which run nothing."""

from export import messages, session
from export.checks import allowed_ops
from export.checks.exported import Failure
from export.files import digests
from export.files.tokenizer_table import vocabulary_of

# What TF Serving's REST API writes as JSON (json_tensor.cc).
_OUTPUT_TYPES = {
    messages.types_pb2.DT_FLOAT,
    messages.types_pb2.DT_DOUBLE,
    messages.types_pb2.DT_INT32,
    messages.types_pb2.DT_INT64,
    messages.types_pb2.DT_BOOL,
    messages.types_pb2.DT_STRING,
}
_METHOD = "tensorflow/serving/predict"
# The words that stand for special tokens follow the vocabulary, see
# `keras_fixedhead.graph_text.placeholders`.
_PLACEHOLDERS = "\U00100000"


def _name_of(data_type):
    return messages.types_pb2.DataType.Name(data_type)


def check_ops(exported):
    """TF Serving has every op, and none acts outside the model.

    It links TensorFlow's own and those of tensorflow-text
    (`SUPPORTED_TENSORFLOW_OPS` in its `model_servers/BUILD`), which are what
    the wheels of the same version register.
    """
    if denied := allowed_ops.denied(exported.graph, exported.meta_graph):
        raise Failure("; ".join(denied))
    kinds = {node.op for node in exported.graph.every_node()}
    return f"{len(kinds)} kinds of ops"


def check_xla(exported):
    """No function requires XLA, which is off in the model server."""
    graph = exported.meta_graph.graph_def
    for owner in (*exported.graph.every_node(), *graph.library.function):
        if owner.attr["_XlaMustCompile"].b:
            name = getattr(owner, "name", None) or owner.signature.name
            raise Failure(f"{name} must be compiled by XLA")
    marked = {
        n.op for n in exported.graph.every_node() if n.op.startswith("Xla")
    }
    if marked:
        raise Failure(f"XLA ops: {', '.join(sorted(marked))}")
    return "none"


def check_signatures(exported):
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
        for alias, tensor in (
            *signature.inputs.items(),
            *signature.outputs.items(),
        ):
            shape = tensor.tensor_shape
            if shape.unknown_rank or not shape.dim or shape.dim[0].size != -1:
                raise Failure(f"{name}: {alias} has no open first dimension")
        for alias, tensor in signature.outputs.items():
            if tensor.dtype not in _OUTPUT_TYPES:
                raise Failure(
                    f"{name}: output {alias} is {_name_of(tensor.dtype)}, "
                    "which REST cannot carry"
                )
        for alias, tensor in signature.inputs.items():
            _check_input(exported, f"{name}: input {alias}", tensor)
    return ", ".join(sorted(signatures))


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


def _sizes(shape):
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]


def check_graph(exported):
    """The graph is the exported one, in whatever order it is written."""
    if not exported.is_sealed:
        return "exported before there were digests; not compared"
    wanted = exported.fact("saved_model_sha256", str)
    if digests.of_saved_model(exported.saved_model) != wanted:
        raise Failure("saved_model.pb is not the exported one")
    return "the exported one"


def check_vocabulary(exported):
    """Every tokenizer in the graph has the vocabulary of the card."""
    tables = [
        node.attr["value"].tensor
        for node in exported.graph.every_node()
        if node.op == "Const"
        and node.attr["dtype"].type == messages.types_pb2.DT_UINT8
    ]
    if not tables:
        raise Failure("the graph has no tokenizer")
    for table in tables:
        try:
            tokens = vocabulary_of(messages.from_tensor_proto(table).tobytes())
        except ValueError as error:
            raise Failure(f"a tokenizer's table is broken: {error}") from error
        while tokens and tokens[-1] >= _PLACEHOLDERS:
            del tokens[-1]
        found = digests.of_vocabulary(tokens)
        if found != exported.fact("vocabulary_sha256", str):
            raise Failure(
                f"a tokenizer has other tokens than the card, {len(tokens)}"
            )
    return f"{len(tokens):,} tokens"
