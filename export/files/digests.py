"""SHA-256 digests of an export, whatever the order of its contents, and its
manifest, the digest of each of its files."""

import hashlib
import json
import pathlib
import stat
from collections.abc import Iterable

import numpy as np
from google.protobuf.message import Message

MANIFEST = "assets.extra/manifest.json"


def _of_text(text):
    return hashlib.sha256(text.encode()).hexdigest()


def _of_parts(parts):
    """Digests byte strings, in any order."""
    return _of_text(
        "\n".join(sorted(hashlib.sha256(part).hexdigest() for part in parts))
    )


def of_vocabulary(tokens: Iterable[str]) -> str:
    """Digests tokens in the order of their ids."""
    return _of_text("".join(f"{token}\n" for token in tokens))


def of_weights(arrays: Iterable[np.ndarray]) -> str:
    """Digests the types, shapes and values of arrays, in any order."""
    return _of_parts(
        f"{array.dtype} {array.shape}\n".encode() + array.tobytes()
        for array in arrays
    )


def of_cases(cases: dict) -> str:
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


def of_saved_model(saved: Message) -> str:
    """Digests a `SavedModel`, whose nodes and functions it sorts in place."""
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


def of_file(path: pathlib.Path) -> str | None:
    """Digests the bytes of a file; None if it is missing."""
    if not path.exists():
        return None
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def of_messages(messages: Iterable[Message]) -> str:
    """Digests protocol buffers, in any order."""
    return _of_parts(m.SerializeToString(deterministic=True) for m in messages)


def of_card(card: dict) -> str:
    """Digests the values of a card."""
    return _of_text(json.dumps(card, sort_keys=True))


def paths(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns every file of an export, by POSIX name."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
    }


def irregular(folder: pathlib.Path) -> list[str]:
    """Returns the names of links, pipes and other special files.

    A reader waits for a pipe, and a model server may not see the target of a
    link.
    """
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not (path.is_file() or path.is_dir())
    ]


def write_manifest(folder: pathlib.Path) -> None:
    """Makes every file readable to all users, as the model server is another
    user, and writes the manifest."""
    (folder / MANIFEST).write_text("", encoding="utf-8")
    for path in (folder, *folder.rglob("*")):
        mode = 0o555 if path.is_dir() else 0o444
        path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    files = {
        name: of_file(path)
        for name, path in paths(folder).items()
        if name != MANIFEST and path.is_file()
    }
    text = json.dumps({"files": files}, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def differences(folder: pathlib.Path) -> list[str]:
    """Returns a line for each file that differs from the manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        wanted = dict(manifest["files"].items())
    except (
        *(AttributeError, KeyError, RecursionError),
        *(TypeError, ValueError),
    ) as error:
        raise ValueError(f"{MANIFEST} is not a manifest: {error!r}") from error
    found = paths(folder)
    found.pop(MANIFEST)
    differing = [f"{name} is missing" for name in wanted if name not in found]
    for name, path in found.items():
        if name not in wanted:
            differing.append(f"{name} is not in the manifest")
        elif not path.is_file() or of_file(path) != wanted[name]:
            differing.append(f"{name} has changed")
    return differing
