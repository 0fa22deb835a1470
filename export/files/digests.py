"""SHA-256 digests of what an export holds, however it is written down."""

import hashlib
import json


def of_vocabulary(tokens):
    """Digests a list of tokens, in the order of their ids."""
    lines = "".join(f"{token}\n" for token in tokens)
    return hashlib.sha256(lines.encode()).hexdigest()


def of_weights(arrays):
    """Digests the types, shapes and values of arrays, in any order."""
    digests = sorted(
        hashlib.sha256(
            f"{array.dtype} {array.shape}\n".encode() + array.tobytes()
        ).hexdigest()
        for array in arrays
    )
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def of_cases(cases):
    """Digests golden cases, `{signature: golden.Case}`."""
    digest = hashlib.sha256()
    for signature, case in sorted(cases.items()):
        for side, arrays in (
            ("inputs", case.inputs),
            ("outputs", case.outputs),
            ("decided", {"": case.decided}),
        ):
            for name, array in sorted(arrays.items()):
                content = array.tobytes()
                if array.dtype.kind in "OU":
                    texts = array.ravel().tolist()
                    content = repr(
                        [t.encode() if isinstance(t, str) else t for t in texts]
                    ).encode()
                kind = "U" if array.dtype.kind == "O" else array.dtype.kind
                digest.update(
                    f"{signature} {side} {name} {kind} {array.shape}\n".encode()
                )
                digest.update(content)
    return digest.hexdigest()


def of_saved_model(saved):
    """Digests a `SavedModel`, in any order of its nodes and functions.

    It sorts them in place.
    """
    for meta_graph in saved.meta_graphs:
        graph = meta_graph.graph_def
        graph.node.sort(key=_name)
        graph.library.function.sort(key=lambda f: f.signature.name)
        for function in graph.library.function:
            function.node_def.sort(key=_name)
        meta_graph.meta_info_def.stripped_op_list.op.sort(key=_name)
    return hashlib.sha256(
        saved.SerializeToString(deterministic=True)
    ).hexdigest()


def _name(message):
    return message.name


def of_file(path):
    """Digests the bytes of a file; None if there is none."""
    if not path.exists():
        return None
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def of_messages(messages):
    """Digests protocol buffers, in any order."""
    digests = sorted(
        hashlib.sha256(m.SerializeToString(deterministic=True)).hexdigest()
        for m in messages
    )
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def of_card(card):
    """Digests the values of a card."""
    text = json.dumps(card, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
