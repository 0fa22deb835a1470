"""Which operations an export may run.

A model server runs whatever a graph contains: `WriteFile` writes a file. The
checks read the graph before they load it.
"""

import re

from export import session

# Operations that read files or write elsewhere, yet are not marked stateful.
_OUTSIDE = re.compile("File(?!name)|^Debug|^Reader|Summary|PyFunc")
_CALLS = {"If", "PartitionedCall", "StatefulPartitionedCall", "While"}
_ANSWERING = _CALLS | {
    *("Assert", "ReadVariableOp", "ResourceGather", "VarHandleOp"),
    "VarIsInitializedOp",
}
_LOADING = _ANSWERING | {"AssignVariableOp", "RestoreV2"}
_SAVING = _LOADING | {"DisableCopyOnRead", "MergeV2Checkpoints", "SaveV2"}


def denied(graph, meta_graph):
    """Returns a list of str: what the graph must not contain, and why.

    Args:
        graph: a `graph.Graph`.
        meta_graph: its `MetaGraphDef`.
    """
    known = session.known_ops()
    every = {node.op for node in graph.every_node()}
    found = []
    unknown = sorted(every - graph.functions - known.keys())
    if unknown:
        found.append(f"TF Serving lacks the ops {', '.join(unknown)}")
    answering = [
        tensor.name
        for signature in meta_graph.signature_def.values()
        for tensor in signature.outputs.values()
    ]
    for what, ops, allowed in (
        ("a signature runs", _ops(graph.reached(answering)), _ANSWERING),
        ("loading runs", _ops(graph.reached(graph.loading())), _LOADING),
        ("the graph has", every, _SAVING),
    ):
        wrong = {op for op in ops & known.keys() if known[op].is_stateful}
        wrong -= allowed
        wrong |= {op for op in ops if _OUTSIDE.search(op)}
        if wrong:
            found.append(
                f"{what} {', '.join(sorted(wrong))}: ops that act outside the "
                "model, or change it"
            )
            break
    if meta_graph.asset_file_def:
        found.append("loading reads asset files, which no export has")
    return found


def _ops(nodes):
    return {node.op for node in nodes}
