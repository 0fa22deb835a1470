"""Faults planted in the graph of an export and in its signatures.

A function that plants a fault takes the folder and a NumPy generator.
"""

from export import messages

_TYPES = messages.types_pb2
SAVED_MODEL = "saved_model.pb"


def edit_graph(edit=lambda graph: None, deterministic=False):
    """Edits the SavedModel message: a function of its only graph."""

    def plant(folder, random):
        path = folder / SAVED_MODEL
        saved = messages.saved_model_pb2.SavedModel.FromString(
            path.read_bytes()
        )
        edit(saved.meta_graphs[0])
        path.write_bytes(saved.SerializeToString(deterministic=deterministic))

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


def wrapper_of(graph):
    """The function of a signature."""
    functions = graph.graph_def.library.function
    return next(f for f in functions if "signature_wrapper" in f.signature.name)


def add_function(*ops):
    """Calls ops of a new function when a signature is asked."""

    def edit(graph):
        for index, op in enumerate(ops):
            wrapper_of(graph).node_def.add(name=f"added_{index}", op=op)

    return edit_graph(edit)


def call_by_name(graph):
    """Hides an op in a function that is called as an op of its name."""
    hidden = graph.graph_def.library.function.add()
    hidden.signature.name = "hidden"
    hidden.node_def.add(name="save", op="SaveV2")
    wrapper_of(graph).node_def.add(name="called", op="hidden")


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


def set_field(path, value):
    """Sets a field of a signature, such as `inputs.text.dtype`."""

    def edit(signature):
        *parts, last = path.split(".")
        for part in parts:
            if part.isdigit():
                signature = signature[int(part)]
            elif hasattr(signature, part):
                signature = getattr(signature, part)
            else:
                signature = signature[part]
        setattr(signature, last, value)

    return edit_signature(edit)


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


# As in `faults`.
FAULTS = [
    ("another graph is served", "graph", shadow),
    (
        "no graph to serve",
        "signatures",
        edit_graph(lambda g: g.meta_info_def.tags.append("gpu")),
    ),
    (
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
    ("an unknown op", "ops", replace_op("Tanh", "AddonsTanh")),
    *(
        (f"a signature runs {op}", "ops", add_function(op))
        for op in (
            *("WriteFile", "ReadFile", "PrintV2", "EagerPyFunc", "SaveV2"),
            *("AssignVariableOp", "DebugIdentityV2"),
        )
    ),
    ("it calls what saves weights", "ops", edit_graph(call_by_name)),
    ("it writes as it loads", "ops", edit_graph(run_at_load)),
    (
        "an asset file",
        "ops",
        edit_graph(lambda g: g.asset_file_def.add(filename="/etc/passwd")),
    ),
    ("another constant", "graph", edit_graph(change_constant)),
    ("another word in the table", "vocabulary", edit_graph(change_table)),
    # Signatures.
    (
        "an input of another type",
        "signatures",
        set_field("inputs.text.dtype", _TYPES.DT_INT64),
    ),
    (
        "an output of another type",
        "load",
        set_field("outputs.embedding.dtype", _TYPES.DT_DOUBLE),
    ),
    (
        "an output that REST lacks",
        "signatures",
        set_field("outputs.embedding.dtype", _TYPES.DT_HALF),
    ),
    (
        "a closed shape",
        "signatures",
        set_field("inputs.text.tensor_shape.dim.0.size", 7),
    ),
    (
        "another embedding size",
        "load",
        set_field("outputs.embedding.tensor_shape.dim.1.size", 11),
    ),
    ("a renamed output", "golden answers", edit_signature(rename_output)),
    (
        "another method",
        "signatures",
        set_field("method_name", "tensorflow/serving/classify"),
    ),
    (
        "a missing signature",
        "signatures",
        edit_graph(lambda g: g.signature_def.pop("query")),
    ),
    ("swapped signatures", "graph", edit_graph(swap_signatures)),
]
