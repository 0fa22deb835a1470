"""The manifest of an index folder, checked: it may come from a stranger."""

import dataclasses
import hashlib
import json
import re
import types
import typing

from export.encoder import Model
from export.files import digests
from export.index.options import Options

MANIFEST = "index.json"
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
    # Indexes from before they had checksums are opened without.
    index_sha256: str | None = None
    bm25: str | None = None
    bm25_sha256: str | None = None
    corpus: str = ""
    index_bytes: int = 0
    bm25_bytes: int = 0
    created: str = ""
    versions: dict = dataclasses.field(default_factory=dict)


def read(folder):
    """Reads the manifest of a folder; None if it has none yet.

    Args:
        folder: `pathlib.Path`.

    Returns:
        The JSON object, a dict of the keys of `_Manifest` that are there.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is not a manifest: it lacks a key, has an unknown key,
            a value of another type, the name of a file outside the folder, or
            numbers of documents that contradict each other.
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
    """Raises a `ValueError` if a JSON value is not of a type."""
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
        raise ValueError(f"{place} is {value!r}, no {kind.__name__}")


def _check_keys(value, kind, place):
    _check(value, dict, place)
    fields = dataclasses.fields(kind)
    missing = [
        field.name
        for field in fields
        if field.name not in value
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{place} lacks {', '.join(missing)}")
    unknown = value.keys() - {field.name for field in fields}
    if unknown:
        raise ValueError(
            f"{place} has unknown keys: {', '.join(sorted(unknown))}"
        )
    for name, inner in typing.get_type_hints(kind).items():
        if name in value:
            inside = name if place == "it" else f"{place}.{name}"
            _check(value[name], inner, inside)


def _check_values(manifest):
    listed = manifest["parts"]
    names = [part["file"] for part in listed] + [manifest["index"]]
    for name in [*names, manifest.get("bm25") or "bm25"]:
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a file beside it")
    counts = [part["documents"] for part in listed]
    if min(counts, default=0) < 1 or sum(counts) != manifest["documents"]:
        raise ValueError(
            f"its parts have {counts} documents, and documents is "
            f"{manifest['documents']}"
        )
    if manifest["embedding_dim"] < 1:
        raise ValueError(f"embedding_dim is {manifest['embedding_dim']}")


def digest(path):
    """Returns the SHA-256 of a file, or of the files of a folder, as hex."""
    if path.is_dir():
        lines = [f"{file.name} {digest(file)}" for file in path.iterdir()]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    return digests.of_file(path)


def check_digest(path, expected):
    """Raises a `ValueError` if a file or folder has another SHA-256."""
    if expected is not None and digest(path) != expected:
        raise ValueError(f"its SHA-256 is not the one that {MANIFEST} states")
