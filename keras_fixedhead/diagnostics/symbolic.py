"""Keras's graphs of symbolic tensors: followed, computed, and forgotten."""

import contextlib
import inspect

from keras import tree


def nodes_between(inputs, outputs):
    """The calls of layers and operations that make tensors of others.

    Args:
        inputs: nested `keras.KerasTensor`, where the graph begins.
        outputs: nested `keras.KerasTensor`, where it ends.

    Returns:
        A list of Keras nodes, each after those it depends on.
    """
    given = {id(x) for x in tree.flatten(inputs)}
    seen, nodes = set(), []
    # Depth first, without recursion.
    stack = [(x, False) for x in reversed(tree.flatten(outputs))]
    while stack:
        x, is_done = stack.pop()
        if is_done:
            nodes.append(x)
            continue
        operation, index, _ = getattr(x, "_keras_history", (None, 0, 0))
        if id(x) in given or operation is None:
            continue
        node = operation._inbound_nodes[index]
        if id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((y, False) for y in reversed(node.input_tensors))
    return nodes


def compute(nodes, values):
    """Runs nodes one by one, without dropout.

    Unlike a `keras.Model` of the same tensors it takes layers of one name,
    which different layers may well hold.

    Args:
        nodes: see `nodes_between`.
        values: dictionary from the `id` of a symbolic tensor to its value;
            what the nodes make is added to it.
    """
    for node in nodes:
        args, kwargs = node.arguments.fill_in(values)
        kwargs = for_inference(node.operation, kwargs)
        outputs = tree.flatten(node.operation(*args, **kwargs))
        values.update(zip(map(id, node.outputs), outputs))


def for_inference(operation, kwargs):
    """Keyword arguments, with `training=False` where its `call` takes that."""
    kwargs = {name: x for name, x in kwargs.items() if name != "training"}
    if "training" in inspect.signature(operation.call).parameters:
        kwargs["training"] = False
    return kwargs


@contextlib.contextmanager
def forgotten(model):
    """Makes a model forget the symbolic calls of the block.

    Layers keep each for good, and `summary` shows the shapes of the last.
    """
    operations = [
        operation
        for layer in model._flatten_layers()
        for operation in (layer, *getattr(layer, "operations", ()))
    ]
    before = [
        (nodes, len(nodes))
        for operation in operations
        for nodes in (operation._inbound_nodes, operation._outbound_nodes)
    ]
    try:
        yield
    finally:
        for nodes, length in before:
            del nodes[length:]
