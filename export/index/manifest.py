"""The manifest of an index folder, checked."""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import re
import types
import typing
from collections.abc import Iterator

from export.encoder import Model
from export.files import digests
from export.index.kinds import Kind, Options

MANIFEST = "index.json"
SHARD_DOCUMENTS = 16_384
# Other names could lead out of the folder.
_FILE_NAME = re.compile("[0-9A-Za-z][0-9A-Za-z_.-]*")


@dataclasses.dataclass
class _Part:
    file: str
    documents: int
    sha256: str


@dataclasses.dataclass
class _Manifest:
    """The keys and types of the file; those with a default may be missing."""

    format: typing.Literal[1]
    documents: int
    model: Model
    options: Options
    parts: list[_Part]
    index: str
    embedding_dim: int
    # Early manifests lack checksums.
    index_sha256: str | None = None
    bm25: str | None = None
    bm25_sha256: str | None = None
    corpus: str = ""
    index_bytes: int = 0
    bm25_bytes: int = 0
    created: str = ""
    versions: dict = dataclasses.field(default_factory=dict)


def read(folder: pathlib.Path) -> dict | None:
    """Returns the keys of `_Manifest` in a folder's manifest; None without one.

    Raises a `ValueError` if a key is missing or unknown, a value has another
    type, a file name leads out of the folder, or numbers of documents
    contradict each other.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        _check(manifest, _Manifest, "it")
        _check_values(manifest)
        return manifest
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not the manifest of an index: {error}. Remove it, and "
            "`python -m export.index` writes it again."
        ) from error


def _check(value, kind, place):
    if dataclasses.is_dataclass(kind):
        _check_keys(value, kind, place)
    elif isinstance(kind, types.UnionType):
        if value is not None:
            _check(value, typing.get_args(kind)[0], place)
    elif typing.get_origin(kind) is list:
        _check(value, list, place)
        for i, item in enumerate(value):
            _check(item, typing.get_args(kind)[0], f"{place}[{i}]")
    elif typing.get_origin(kind) is typing.Literal:
        known = typing.get_args(kind)
        if type(value) is not type(known[0]) or value not in known:
            known = " or ".join(map(repr, known))
            raise ValueError(f"{place} is {value!r}, not {known}")
    elif type(value) is not kind:
        raise ValueError(f"{place} is {value!r}, not {kind.__name__}")


def _check_keys(value, kind, place):
    _check(value, dict, place)
    fields = dataclasses.fields(kind)
    missing = [
        field.name
        for field in fields
        if field.name not in value
        and field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{place} lacks {', '.join(missing)}")
    hints = typing.get_type_hints(kind)
    unknown = sorted(value.keys() - hints.keys())
    if unknown:
        raise ValueError(f"{place} has unknown keys: {', '.join(unknown)}")
    for name, inner in value.items():
        inside = name if place == "it" else f"{place}.{name}"
        _check(inner, hints[name], inside)


def _check_values(manifest):
    listed = manifest["parts"]
    names = [part["file"] for part in listed] + [manifest["index"]]
    for name in [*names, manifest.get("bm25") or "bm25"]:
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a file beside it")
    if manifest["index"].rpartition(".")[2] not in Kind.__members__:
        known = " or ".join(f".{kind.name}" for kind in Kind)
        raise ValueError(f"index is {manifest['index']!r}, not a {known} file")
    counts = [part["documents"] for part in listed]
    if min(counts, default=0) < 1 or sum(counts) != manifest["documents"]:
        raise ValueError(
            f"its parts have {counts} documents, and documents is "
            f"{manifest['documents']}"
        )
    if manifest["embedding_dim"] < 1:
        raise ValueError(f"embedding_dim is {manifest['embedding_dim']}")


def digest(path: pathlib.Path) -> str | None:
    """Returns the SHA-256 of a file, or of the files of a folder, as hex; None
    if it is missing."""
    if path.is_dir():
        lines = [f"{file.name} {digest(file)}" for file in path.iterdir()]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    return digests.of_file(path)


@contextlib.contextmanager
def reading(
    path: pathlib.Path, kind: str, again: str, sha256: str | None = None
) -> Iterator[None]:
    """Checks the SHA-256 of a file or folder, and names it if it is broken."""
    try:
        if sha256 is not None and digest(path) != sha256:
            raise ValueError(
                f"its SHA-256 is not the one that {MANIFEST} states"
            )
        yield
    # Arrow, FAISS, NumPy and bm25s raise errors of many kinds.
    except Exception as error:
        absent = isinstance(error, FileNotFoundError) and not path.exists()
        if absent or isinstance(error, ImportError):
            raise
        raise ValueError(
            f"{path} cannot be read as {kind}. Remove it, and `python -m "
            f"export.index` {again}: {error}"
        ) from error
