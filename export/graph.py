"""What a SavedModel would run, read from its graph, and whether it may.

A model server runs whatever a graph contains: `WriteFile` writes a file. The
checks read the graph before they load it.
"""

import re
from collections.abc import Iterable, Iterator

from google.protobuf.message import Message

from export import session

# TensorFlow's cc/saved_model/constants.h
_LOADING_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
# Operations that read files or write elsewhere, yet are not marked stateful.
_OUTSIDE = re.compile("File(?!name)|^Debug|^Reader|Summary|PyFunc")
_CALLS = {"If", "PartitionedCall", "StatefulPartitionedCall", "While"}
_ANSWERING = _CALLS | {
    *("Assert", "ReadVariableOp", "ResourceGather", "VarHandleOp"),
    "VarIsInitializedOp",
}
_LOADING = _ANSWERING | {"AssignVariableOp", "RestoreV2"}
_SAVING = _LOADING | {"DisableCopyOnRead", "MergeV2Checkpoints", "SaveV2"}


class Graph:
    """The graph and the functions of a `MetaGraphDef`.

    Methods raise a `ValueError` if a node or a function is missing.
    """

    def __init__(self, meta_graph: Message):
        self._meta_graph = meta_graph
        self._nodes = {node.name: node for node in meta_graph.graph_def.node}
        self._functions = {
            function.signature.name: function
            for function in meta_graph.graph_def.library.function
        }

    def node(self, tensor: str) -> Message:
        """Finds the node of an operation or a tensor, such as `^a`, `a:1` or
        `a:out:1`."""
        name = tensor.removeprefix("^").partition(":")[0]
        if name not in self._nodes:
            raise ValueError(f"The graph has no node {name!r}.")
        return self._nodes[name]

    def _called(self, node):
        """Yields the names of the functions that a node calls."""
        if node.op in self._functions:
            yield node.op
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func.name
            yield from (function.name for function in value.list.func)

    def every_node(self) -> Iterator[Message]:
        """Yields each `NodeDef`, also those in functions."""
        yield from self._nodes.values()
        for function in self._functions.values():
            yield from function.node_def

    def _reached(self, tensors: Iterable[str]) -> set[str]:
        """Returns the ops that run to compute tensors or operations."""
        todo, seen = [self.node(tensor) for tensor in tensors], set()
        ops, calls, called = set(), [], set()
        while todo:
            node = todo.pop()
            if node.name not in seen:
                seen.add(node.name)
                todo += [self.node(tensor) for tensor in node.input]
                calls += self._called(node)
                ops.add(node.op)
        while calls:
            name = calls.pop()
            if name not in called:
                called.add(name)
                if name not in self._functions:
                    raise ValueError(f"The graph has no function {name!r}.")
                for node in self._functions[name].node_def:
                    calls += self._called(node)
                    ops.add(node.op)
        return ops

    def _loading(self):
        """Returns the names of the operations that run at loading."""
        collections = self._meta_graph.collection_def
        names = [
            name
            for key in _LOADING_COLLECTIONS
            if key in collections
            for name in collections[key].node_list.value
        ]
        restore = self._meta_graph.saver_def.restore_op_name
        return names + ([restore] if restore else [])

    def denied(self) -> list[str]:
        """Returns what the graph must not contain, and why."""
        known = session.known_ops()
        every = {node.op for node in self.every_node()}
        found = []
        unknown = sorted(every - self._functions.keys() - known.keys())
        if unknown:
            found.append(f"TF Serving lacks the ops {', '.join(unknown)}")
        answering = [
            tensor.name
            for signature in self._meta_graph.signature_def.values()
            for tensor in signature.outputs.values()
        ]
        for what, ops, allowed in (
            ("a signature runs", self._reached(answering), _ANSWERING),
            ("loading runs", self._reached(self._loading()), _LOADING),
            ("the graph has", every, _SAVING),
        ):
            wrong = {op for op in ops & known.keys() if known[op].is_stateful}
            wrong -= allowed
            wrong |= {op for op in ops if _OUTSIDE.search(op)}
            if wrong:
                found.append(
                    f"{what} {', '.join(sorted(wrong))}: ops that act outside "
                    "the model, or change it"
                )
                break
        if self._meta_graph.asset_file_def:
            found.append("loading reads asset files, which no export has")
        return found
