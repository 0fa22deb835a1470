"""An exported version folder, as the checks read it, and its graph.

A model server runs whatever a graph contains: `WriteFile` writes a file. So
the checks read what a graph would run before they load it.
"""

import functools
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from export import messages, session
from export.files import card, digests, golden

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
_SERVE_TAG = "serve"
_T = TypeVar("_T")
_MOST_ROWS = 4096


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


class Failure(Exception):
    """A check that found the export wrong; the message says how."""


class Exported:
    """A version folder; raises a `Failure` for what it cannot read.

    Long checks call `tell` with what they are doing.
    """

    def __init__(
        self,
        folder: str | pathlib.Path,
        tell: Callable[[str], None] = lambda doing: None,
    ):
        self.folder, self.tell = pathlib.Path(folder), tell

    @property
    def saved_model(self) -> Message:
        """The `SavedModel`, parsed anew."""
        content = (self.folder / "saved_model.pb").read_bytes()
        try:
            return messages.saved_model_pb2.SavedModel.FromString(content)
        except DecodeError as error:
            raise Failure("saved_model.pb is not a SavedModel") from error

    @functools.cached_property
    def meta_graph(self) -> Message:
        """The `MetaGraphDef` that a model server loads."""
        saved = self.saved_model
        tags = [list(found.meta_info_def.tags) for found in saved.meta_graphs]
        if tags != [[_SERVE_TAG]]:
            raise Failure(
                f"saved_model.pb has graphs tagged {tags}, not one tagged "
                f"{_SERVE_TAG!r}"
            )
        return saved.meta_graphs[0]

    @functools.cached_property
    def graph(self) -> Graph:
        return Graph(self.meta_graph)

    @functools.cached_property
    def signatures(self) -> dict[str, Message]:
        """`{name: SignatureDef}`, without the initialization op."""
        signatures = dict(self.meta_graph.signature_def)
        signatures.pop(session.INIT_OP, None)
        return signatures

    @functools.cached_property
    def card(self) -> dict:
        try:
            found = card.load(self.folder)
        except (OSError, RecursionError, ValueError) as error:
            raise Failure(f"{card.FILE} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise Failure(f"{card.FILE} is not a JSON object")
        return found

    def fact(self, name: str, kind: type[_T], most: int = 2**40) -> _T:
        """Returns a value of the card, of a type; an int from 1 to `most`."""
        value: Any = self.card.get(name)
        too_large = isinstance(value, int) and not 0 < value <= most
        if type(value) is not kind or too_large:
            raise Failure(
                f"{card.FILE} must have {name!r} of type {kind.__name__}, "
                f"received {str(value)[:99]!r}"
            )
        return value

    def compare(self, name: str, digest: str, problem: str) -> None:
        """Raises a `Failure` if the card has another digest."""
        if digest != self.fact(name, str):
            raise Failure(problem)

    @property
    def batch_sizes(self) -> list[int]:
        """The sizes that the server runs; empty if unknown."""
        if "batch_sizes" not in self.card:
            return []
        sizes = self.fact("batch_sizes", list)
        if not sizes or not all(
            type(size) is int and 0 < size <= _MOST_ROWS for size in sizes
        ):
            raise Failure(
                f"{card.FILE} must have 'batch_sizes' from 1 to {_MOST_ROWS}, "
                f"received {str(sizes)[:99]}"
            )
        return sizes

    @functools.cached_property
    def golden(self) -> golden.Golden:
        try:
            return golden.load(self.folder)
        except (OSError, ValueError) as error:
            raise Failure(f"{golden.FILE} cannot be read: {error}") from error

    @property
    def is_sealed(self) -> bool:
        """Whether the export has a manifest and digests; old ones lack them."""
        return (
            (self.folder / digests.MANIFEST).exists()
            or "saved_model_sha256" in self.card
            or self.golden.card_sha256 is not None
        )

    @functools.cached_property
    def variables(self) -> dict[str, Message]:
        """`{name: VarHandleOp node}` of the variables of the graph."""
        return {
            node.name: node
            for node in self.meta_graph.graph_def.node
            if node.op == "VarHandleOp"
        }

    @property
    def parameter_bytes(self) -> int:
        """The bytes of all variables, by their declared shapes and types."""
        total = 0
        for name, node in self.variables.items():
            sizes = [dim.size for dim in node.attr["shape"].shape.dim]
            if min(sizes, default=0) < 0:
                raise Failure(f"the variable {name} has no definite shape")
            dtype = messages.numpy_dtype(node.attr["dtype"].type)
            total += math.prod(sizes) * dtype.itemsize
        return total

    @functools.cached_property
    def dtype(self) -> str:
        """What the graph computes in: a key of `golden.TOLERANCES`."""
        int8 = messages.types_pb2.DT_INT8
        bfloat16 = messages.types_pb2.DT_BFLOAT16
        if any(v.attr["dtype"].type == int8 for v in self.variables.values()):
            return "int8"
        if any(n.attr["T"].type == bfloat16 for n in self.graph.every_node()):
            return "bfloat16"
        return "float32"

    @functools.cached_property
    def session(self) -> session.SavedModelSession:
        """The loaded model, if its ops may run here."""
        if denied := self.graph.denied():
            raise Failure(f"not loaded: {'; '.join(denied)}")
        return session.SavedModelSession(self.folder)

    def ask(
        self, signature: str, inputs: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Answers a request with values of the declared types and shapes.

        Raises a `Failure` if they differ or are not finite, a `StatusError` if
        the model refuses the request.
        """
        if signature not in self.signatures:
            raise Failure(f"there is no signature {signature!r}")
        definition = self.signatures[signature]
        unknown = sorted(inputs.keys() - definition.inputs.keys())
        if unknown:
            raise Failure(f"{signature} has no input {', '.join(unknown)}")
        answers = self.session.run(inputs, signature)
        for name, array in answers.items():
            declared = definition.outputs[name]
            if messages.data_type(array) != declared.dtype:
                raise Failure(
                    f"{signature}: {name} is declared as "
                    f"{messages.types_pb2.DataType.Name(declared.dtype)} and "
                    f"answered as {array.dtype}"
                )
            sizes = [dim.size for dim in declared.tensor_shape.dim]
            if len(sizes) != array.ndim or any(
                size not in (-1, found)
                for size, found in zip(sizes, array.shape)
            ):
                raise Failure(
                    f"{signature}: {name} is declared with shape {sizes} and "
                    f"answered with {list(array.shape)}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Failure(f"{signature}: {name} is not finite")
        return answers
