"""Faults planted in an export, and rewrites of it that do no harm.

A function that plants a fault takes the folder and a NumPy generator.
"""

import os
import shutil
import typing
import zipfile

import numpy as np
import tensorflow as tf

from export import messages
from export.files import card, digests, golden, warmup

_TYPES = messages.types_pb2
SAVED_MODEL = "saved_model.pb"
DATA = "variables/variables.data-00000-of-00001"
INDEX = "variables/variables.index"


class Fault(typing.NamedTuple):
    """A fault.

    Attributes:
        name: str.
        check: name of the check that finds it whatever the manifest says.
        plant: function of the folder and a generator.
    """

    name: str
    check: str
    plant: typing.Callable


def flip(name, first=0.0):
    """Flips one bit of a file, past a fraction of its bytes."""

    def plant(folder, random):
        path = folder / name
        content = bytearray(path.read_bytes())
        place = random.integers(int(first * len(content)), len(content))
        content[place] ^= 1 << random.integers(8)
        path.write_bytes(content)

    return plant


def flip_in_archive(folder, random):
    """Flips one bit of the compressed arrays of the golden answers."""
    path = folder / golden.FILE
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        part = random.choice(archive.infolist())
    # The name and the extra field of `part` follow its header of 30 bytes.
    start = part.header_offset + 30 + len(part.filename) + 20
    place = start + random.integers(part.compress_size)
    content[place] ^= 1 << random.integers(8)
    path.write_bytes(content)


def edit_graph(edit):
    """Edits the SavedModel message: a function of its only graph."""

    def plant(folder, random):
        path = folder / SAVED_MODEL
        saved = messages.saved_model_pb2.SavedModel.FromString(
            path.read_bytes()
        )
        edit(saved.meta_graphs[0])
        path.write_bytes(saved.SerializeToString())

    return plant


def edit_signature(edit, name="serving_default"):
    return edit_graph(lambda graph: edit(graph.signature_def[name]))


def node_of(graph, op):
    """The first node of an op, in the functions or else outside."""
    nodes = [n for f in graph.graph_def.library.function for n in f.node_def]
    return next(n for n in (*nodes, *graph.graph_def.node) if n.op == op)


def replace_op(op, other):
    def edit(graph):
        node_of(graph, op).op = other

    return edit_graph(edit)


def add_function(*ops):
    """Calls ops of a new function when a signature is asked."""

    def edit(graph):
        wrapper = next(
            f
            for f in graph.graph_def.library.function
            if "signature_wrapper" in f.signature.name
        )
        for index, op in enumerate(ops):
            wrapper.node_def.add(name=f"added_{index}", op=op)

    return edit_graph(edit)


def call_by_name(graph):
    """Hides an op in a function that is called as an op of its name."""
    hidden = graph.graph_def.library.function.add()
    hidden.signature.name = "hidden"
    hidden.node_def.add(name="save", op="SaveV2")
    wrapper = next(
        f
        for f in graph.graph_def.library.function
        if "signature_wrapper" in f.signature.name
    )
    wrapper.node_def.add(name="called", op="hidden")


def change_constant(graph):
    for function in graph.graph_def.library.function:
        for node in function.node_def:
            tensor = node.attr["value"].tensor
            if node.op == "Const" and len(tensor.float_val) == 1:
                tensor.float_val[0] += 0.5
                return


def change_table(graph):
    (node,) = (
        n
        for n in graph.graph_def.node
        if n.op == "Const" and n.attr["dtype"].type == _TYPES.DT_UINT8
    )
    tensor = node.attr["value"].tensor
    content = tensor.tensor_content
    assert b"quick" in content
    tensor.tensor_content = content.replace(b"quick", b"quack")


def shadow(folder, random):
    """A graph that XLA compiles is served, behind a sound one."""
    path = folder / SAVED_MODEL
    saved = messages.saved_model_pb2.SavedModel.FromString(path.read_bytes())
    served = saved.meta_graphs.add()
    served.CopyFrom(saved.meta_graphs[0])
    node_of(served, "StatefulPartitionedCall").attr["_XlaMustCompile"].b = True
    saved.meta_graphs[0].meta_info_def.tags[:] = ["other"]
    path.write_bytes(saved.SerializeToString())


def edit_weights(edit):
    """Writes a sound checkpoint of other weights."""

    def plant(folder, random):
        prefix = str(folder / "variables" / "variables")
        reader = tf.train.load_checkpoint(prefix)
        tensors = {
            name: np.array(reader.get_tensor(name))
            for name in reader.get_variable_to_shape_map()
        }
        edit(tensors)
        names = sorted(tensors)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tensors[name] for name in names],
        )

    return plant


def _weight(tensors, *shape):
    """The first weight of a shape, sizes as in `tiny`."""
    return next(x for _, x in sorted(tensors.items()) if x.shape == shape)


def swap_rows(tensors):
    table = _weight(tensors, 89, 13)
    table[[70, 71]] = table[[71, 70]]


def swap_positions(tensors):
    table = _weight(tensors, 37, 13)
    table[[33, 34]] = table[[34, 33]]


def add_to_weight(value):
    def edit(tensors):
        _weight(tensors, 13, 31)[3, 5] += value

    return edit_weights(edit)


def edit_card(**values):
    def plant(folder, random):
        described = {**card.load(folder), **values}
        kept = {k: v for k, v in described.items() if v is not None}
        card.save(folder, kept)

    return plant


def edit_golden(edit):
    def plant(folder, random):
        with np.load(folder / golden.FILE) as stored:
            arrays = dict(stored)
        edit(arrays)
        np.savez_compressed(folder / golden.FILE, **arrays)

    return plant


def drop_rows(arrays):
    for name in arrays:
        if name.startswith("from_token_ids/"):
            arrays[name] = arrays[name][:-1]


def repeat_row(arrays):
    for name in arrays:
        if name.startswith("serving_default/"):
            arrays[name][-1] = arrays[name][-2]


def drop_signature(arrays):
    for name in list(arrays):
        if name.startswith("query/"):
            del arrays[name]


def edit_warmup(edit):
    """Writes other warm-up requests, with right checksums."""

    def plant(folder, random):
        replayed = warmup.read(folder)
        edit(replayed)
        warmup.write(folder, replayed)

    return plant


def oversize(replayed):
    text = np.array([b"a"] * 33, object)
    replayed[0].inputs["text"].CopyFrom(messages.to_tensor_proto(text))


def garbage_record(folder, random):
    with tf.io.TFRecordWriter(str(folder / warmup.FILE)) as writer:
        writer.write(b"garbage")


def write(name, content=b"garbage"):
    def plant(folder, random):
        (folder / name).write_bytes(content)

    return plant


def truncate(name):
    def plant(folder, random):
        path = folder / name
        os.truncate(path, path.stat().st_size * 2 // 3)

    return plant


def remove(name):
    return lambda folder, random: (folder / name).unlink()


def make_folder(folder, random):
    (folder / "assets.extra/saved_model_config.pb").mkdir()


def link_file(folder, random):
    path = folder / "fingerprint.pb"
    shutil.move(path, folder.with_name("elsewhere"))
    path.symlink_to(folder.with_name("elsewhere"))


def make_pipe(folder, random):
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)


def chmod(name, mode):
    return lambda folder, random: (folder / name).chmod(mode)


def set_field(path, value):
    """Sets a field of a signature, such as `inputs.text.dtype`."""

    def edit(signature):
        *parts, last = path.split(".")
        for part in parts:
            signature = (
                getattr(signature, part)
                if hasattr(signature, part)
                else signature[part]
            )
        setattr(signature, last, value)

    return edit_signature(edit)


def close_shape(signature):
    signature.inputs["text"].tensor_shape.dim[0].size = 7


def set_length(signature):
    signature.outputs["embedding"].tensor_shape.dim[1].size = 11


def rename_output(signature):
    signature.outputs["vector"].CopyFrom(signature.outputs["embedding"])
    del signature.outputs["embedding"]


def swap_signatures(graph):
    first = type(graph.signature_def["query"])()
    first.CopyFrom(graph.signature_def["query"])
    graph.signature_def["query"].CopyFrom(graph.signature_def["document"])
    graph.signature_def["document"].CopyFrom(first)


def run_at_load(graph):
    graph.graph_def.node.add(name="added", op="WriteFile")
    graph.collection_def["saved_model_main_op"].node_list.value[:] = ["added"]


def _flips(name, check, count, **options):
    return [
        Fault(f"bit {i} of {name}", check, flip(name, **options))
        for i in range(count)
    ]


FAULTS = [
    *_flips(SAVED_MODEL, "graph", 9),
    # The names of the weights come first; nothing reads them to serve.
    *_flips(DATA, "load", 3, first=0.3),
    *_flips(INDEX, "load", 2),
    *_flips(warmup.FILE, "warm-up", 2),
    *_flips(card.FILE, "card", 2),
    *_flips("fingerprint.pb", "card", 1),
    *(
        Fault(
            f"bit {i} of the golden answers", "golden answers", flip_in_archive
        )
        for i in range(2)
    ),
    # The graph.
    Fault("another graph is served", "graph", shadow),
    Fault(
        "no graph to serve",
        "signatures",
        edit_graph(lambda g: g.meta_info_def.tags.append("gpu")),
    ),
    Fault(
        "a jit-compiled function",
        "xla",
        edit_graph(
            lambda g: (
                g.graph_def.library.function[0]
                .attr["_XlaMustCompile"]
                .CopyFrom(type(node_of(g, "Const").attr["value"])(b=True))
            )
        ),
    ),
    Fault("an unknown op", "ops", replace_op("Tanh", "AddonsTanh")),
    Fault("it writes files", "ops", add_function("WriteFile")),
    Fault("it reads files", "ops", add_function("ReadFile")),
    Fault("it prints", "ops", add_function("PrintV2")),
    Fault("it runs Python", "ops", add_function("EagerPyFunc")),
    Fault("it saves weights", "ops", add_function("SaveV2")),
    Fault("it calls what saves weights", "ops", edit_graph(call_by_name)),
    Fault("it changes weights", "ops", add_function("AssignVariableOp")),
    Fault("it debugs", "ops", add_function("DebugIdentityV2")),
    Fault("it writes as it loads", "ops", edit_graph(run_at_load)),
    Fault(
        "an asset file",
        "ops",
        edit_graph(lambda g: g.asset_file_def.add(filename="/etc/passwd")),
    ),
    Fault("another constant", "graph", edit_graph(change_constant)),
    Fault("another word in the table", "vocabulary", edit_graph(change_table)),
    # Signatures.
    Fault(
        "an input of another type",
        "signatures",
        set_field("inputs.text.dtype", _TYPES.DT_INT64),
    ),
    Fault(
        "an output of another type",
        "load",
        set_field("outputs.embedding.dtype", _TYPES.DT_DOUBLE),
    ),
    Fault(
        "an output that REST lacks",
        "signatures",
        set_field("outputs.embedding.dtype", _TYPES.DT_HALF),
    ),
    Fault("a closed shape", "signatures", edit_signature(close_shape)),
    Fault("another embedding size", "load", edit_signature(set_length)),
    Fault("a renamed output", "golden answers", edit_signature(rename_output)),
    Fault(
        "another method",
        "signatures",
        set_field("method_name", "tensorflow/serving/classify"),
    ),
    Fault(
        "a missing signature",
        "signatures",
        edit_graph(lambda g: g.signature_def.pop("query")),
    ),
    Fault("swapped signatures", "graph", edit_graph(swap_signatures)),
    # Weights.
    Fault("swapped tokens", "golden answers", edit_weights(swap_rows)),
    Fault("swapped positions", "golden answers", edit_weights(swap_positions)),
    Fault("another weight", "weights", add_to_weight(1e-6)),
    Fault("NaN among the weights", "load", add_to_weight(np.nan)),
    Fault(
        "more in the checkpoint",
        "weights stored once",
        edit_weights(
            lambda t: t.update(more=np.ones([9973], "float32")),
        ),
    ),
    Fault("half the weights", "load", truncate(DATA)),
    # The card, the golden answers and the warm-up.
    Fault("a card of bfloat16", "card", edit_card(dtype="bfloat16")),
    Fault("a card of more bytes", "card", edit_card(parameter_bytes=2**20)),
    Fault("a card of another run", "card", edit_card(run={"steps": 7})),
    Fault("a card without bytes", "card", edit_card(parameter_bytes=None)),
    Fault(
        "a card of other tokens",
        "vocabulary",
        edit_card(vocabulary_sha256="0" * 64),
    ),
    Fault("a card that is a list", "card", write(card.FILE, b"[]")),
    Fault("a dropped row", "golden answers", edit_golden(drop_rows)),
    Fault("a repeated row", "golden answers", edit_golden(repeat_row)),
    Fault("a signature not asked", "signatures", edit_golden(drop_signature)),
    Fault("a warm-up too large", "warm-up", edit_warmup(oversize)),
    Fault(
        "a warm-up of no signature",
        "warm-up",
        edit_warmup(lambda r: setattr(r[0].model_spec, "signature_name", "no")),
    ),
    Fault("a shorter warm-up", "warm-up", edit_warmup(lambda r: r.pop())),
    Fault("a garbled warm-up", "warm-up", garbage_record),
    # Files.
    Fault("half the graph", "signatures", truncate(SAVED_MODEL)),
    Fault(
        "settings of the server",
        "files",
        write("assets.extra/saved_model_config.pb"),
    ),
    Fault("a second graph", "files", write("saved_model.pbtxt")),
    Fault("no warm-up", "files", remove(warmup.FILE)),
    Fault("a folder that no export has", "files", make_folder),
    Fault("a link to a file elsewhere", "files", link_file),
    Fault("a pipe", "files", make_pipe),
    Fault("a private file", "permissions", chmod(INDEX, 0o600)),
    Fault("a private folder", "permissions", chmod("variables", 0o700)),
]


def seal(folder):
    """Writes the manifest again, as one who plants a fault would."""
    mode = {p: p.stat().st_mode for p in (folder, *folder.rglob("*"))}
    digests.write_manifest(folder)
    for path, bits in mode.items():
        path.chmod(bits)
