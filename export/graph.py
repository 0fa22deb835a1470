"""What a SavedModel would run, read from its graph."""

# TensorFlow's cc/saved_model/constants.h
_LOADING_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")


def _owner(tensor):
    """The node or argument of an input such as `^a`, `a:1` or `a:out:1`."""
    return tensor.removeprefix("^").partition(":")[0]


class Graph:
    """The graph and the functions of a `MetaGraphDef`.

    The methods raise `ValueError` if the graph lacks a node or a function that
    it refers to.
    """

    def __init__(self, meta_graph):
        self._meta_graph = meta_graph
        self._nodes = {node.name: node for node in meta_graph.graph_def.node}
        self._functions = {
            function.signature.name: function
            for function in meta_graph.graph_def.library.function
        }

    def node(self, tensor):
        """Returns the `NodeDef` of a tensor or an operation, by name."""
        name = _owner(tensor)
        if name not in self._nodes:
            raise ValueError(f"The graph has no node {name!r}.")
        return self._nodes[name]

    @property
    def functions(self):
        """The names of the functions, a set of str."""
        return self._functions.keys()

    def _function(self, name):
        if name not in self._functions:
            raise ValueError(f"The graph has no function {name!r}.")
        return self._functions[name]

    def _called(self, node):
        """Yields the names of the functions that a node calls."""
        if node.op in self._functions:
            yield node.op
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func.name
            yield from (function.name for function in value.list.func)

    def every_node(self):
        """Yields each `NodeDef`, those of functions included."""
        yield from self._nodes.values()
        for function in self._functions.values():
            yield from function.node_def

    def reached(self, tensors):
        """Yields each `NodeDef` that runs to compute tensors, once.

        Args:
            tensors: names of tensors or operations.
        """
        todo, seen = [self.node(tensor) for tensor in tensors], set()
        calls, called = [], set()
        while todo:
            node = todo.pop()
            if node.name not in seen:
                seen.add(node.name)
                todo += [self.node(tensor) for tensor in node.input]
                calls += self._called(node)
                yield node
        while calls:
            name = calls.pop()
            if name not in called:
                called.add(name)
                for node in self._function(name).node_def:
                    calls += self._called(node)
                    yield node

    def loading(self):
        """Returns the names of the operations that run when it is loaded."""
        collections = self._meta_graph.collection_def
        names = [
            name
            for key in _LOADING_COLLECTIONS
            if key in collections
            for name in collections[key].node_list.value
        ]
        restore = self._meta_graph.saver_def.restore_op_name
        return sorted(names) + ([restore] if restore else [])
