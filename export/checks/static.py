"""Checks of the files and the graph of an export, which run nothing."""

import stat
import struct

from flatbuffers import number_types, table
from flatbuffers.encode import Get

from export import messages, session
from export.checks.exported import Exported, Failure
from export.files import card, digests, golden, warmup

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
_SIZE_LIMIT = 1.02  # bytes of variables on disk per byte of parameters
# A checkpoint also holds the names of its variables.
_CHECKPOINT_OVERHEAD = 32 * 1024
_FILES = (
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
    golden.FILE,
    warmup.FILE,
    card.FILE,
)
_FOLDERS = {"assets", "assets.extra", "variables"}
# Some versions of TensorFlow write no fingerprint; old exports lack a manifest.
_OPTIONAL = (card.FINGERPRINT, digests.MANIFEST)
_UNSEALED = "exported before there were manifests; not compared"


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


def check_manifest(exported: Exported) -> str:
    """Every file is byte for byte what was exported."""
    if not exported.is_sealed:
        return _UNSEALED
    try:
        differing = digests.differences(exported.folder)
    except OSError as error:
        raise Failure(f"{digests.MANIFEST} is missing") from error
    if differing:
        raise Failure("; ".join(differing))
    return f"{len(digests.paths(exported.folder)) - 1} files"


def check_files(exported: Exported) -> str:
    """The files of an export are there, and no others, such as
    `saved_model_config.pb`, which a model server might read."""
    found = digests.paths(exported.folder)
    missing = [name for name in _FILES if name not in found]
    if missing:
        raise Failure(f"files are missing: {', '.join(missing)}")
    folders = {
        path.relative_to(exported.folder).as_posix()
        for path in exported.folder.rglob("*")
        if path.is_dir()
    }
    others = found.keys() - {*_FILES, *_OPTIONAL} | folders - _FOLDERS
    if others:
        raise Failure(f"an export has no {', '.join(sorted(others))}")
    if irregular := digests.irregular(exported.folder):
        raise Failure(f"{', '.join(irregular)} must be a plain file or folder")
    return f"{len(found)} files"


def check_permissions(exported: Exported) -> str:
    """Every user may read every file: a model server is another user."""
    for path in (exported.folder, *exported.folder.rglob("*")):
        wanted = 0o005 if path.is_dir() else 0o004
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & wanted != wanted:
            name = path.relative_to(exported.folder.parent)
            raise Failure(f"{name} has mode {mode:03o}: not all may read it")
    return "all may read"


def check_card(exported: Exported) -> str:
    """The card is the exported one, and describes the weights."""
    for name, value in (
        ("dtype", exported.dtype),
        ("parameter_bytes", exported.parameter_bytes),
    ):
        said = exported.fact(name, type(value))
        if said != value:
            raise Failure(
                f"{card.FILE} says {name} {said!r}, the graph {value!r}"
            )
    if not exported.is_sealed:
        return _UNSEALED
    if digests.of_card(exported.card) != exported.golden.card_sha256:
        raise Failure(
            f"{card.FILE} is not the one that {golden.FILE} was written with"
        )
    fingerprint = digests.of_file(exported.folder / card.FINGERPRINT)
    if fingerprint != exported.card.get("fingerprint_sha256"):
        raise Failure(f"{card.FINGERPRINT} is not the exported one")
    return "the exported one"


def check_weights_once(exported: Exported) -> str:
    """The variables on disk are no larger than the model's parameters."""
    parameters = exported.fact("parameter_bytes", int)
    stored = sum(
        path.stat().st_size
        for path in (exported.folder / "variables").glob("variables.data-*")
    )
    if stored > _SIZE_LIMIT * parameters + _CHECKPOINT_OVERHEAD:
        raise Failure(
            f"{stored:,} bytes of variables for {parameters:,} bytes of "
            f"parameters ({stored / parameters:.2f}x)"
        )
    return f"{stored / parameters:.4f}x the parameter bytes"
