"""The manifest of an index folder, what an index stores, and its kinds.

Imports only what is quick to import, because `--help` does.
"""

import contextlib
import dataclasses
import enum
import hashlib
import json
import pathlib
import pkgutil
import typing
from collections.abc import Iterator

from export import files
from export.model_source import Model

if typing.TYPE_CHECKING:
    from export.index.faiss_index import FaissIndex

MANIFEST = "index.json"
SHARD_DOCUMENTS = 16_384


@dataclasses.dataclass(frozen=True)
class Options:
    """What an index stores; see `retrieval.new_index`."""

    precision: typing.Literal["float32", "int8", "binary", "binary_int8"] = (
        "float32"
    )
    """What the index stores of each dimension: float32 four bytes, int8 one
    byte, binary one bit (and 8 bytes per document), binary_int8 one bit to
    find documents and one byte to score them again."""

    dimension: int | None = None
    """Dimensions of an embedding that the index stores. Default: all."""

    reduction: typing.Literal["truncate", "pca"] = "truncate"
    """How to reduce the dimension: keep the first dimensions (for models
    trained for it) or the principal components of the documents."""

    approximate: bool = False
    """Search only a part of the documents, which finds most of the best ones;
    for many documents. Uses a graph, which takes long to build (for the binary
    precisions, cells)."""


class Kind(enum.Enum):
    """The kinds of index, by the suffix of their files.

    A class of another kind has the methods of `FaissIndex`.
    """

    faiss = "export.index.faiss_index:FaissIndex"

    @property
    def index_class(self) -> "type[FaissIndex]":
        return pkgutil.resolve_name(self.value)


def read(folder: pathlib.Path) -> dict | None:
    """Returns a folder's manifest; None without one."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != 1:
            raise ValueError(f"format is {manifest['format']!r}, not 1")
        Model(**manifest["model"])
        Options(**manifest["options"])
        files = [part["file"] for part in manifest["parts"]]
        for name in (*files, manifest["index"], manifest.get("bm25") or "bm25"):
            if pathlib.PurePath(name).name != name:
                raise ValueError(
                    f"{name!r} is not the name of a file beside it"
                )
        return manifest
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not the manifest of an index: {error!r}. Remove it, "
            "and `python -m export.index` writes it again."
        ) from error


def digest(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file, or of the files of a folder, as hex."""
    if path.is_dir():
        lines = [f"{file.name} {digest(file)}" for file in path.iterdir()]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    return files.digest(path)


@contextlib.contextmanager
def reading(
    path: pathlib.Path, kind: str, again: str, sha256: str | None = None
) -> Iterator[None]:
    """Checks the SHA-256 of a file or folder, and names it if it is broken."""
    try:
        if sha256 is not None and digest(path) != sha256:
            raise ValueError(f"its SHA-256 is not that of {MANIFEST}")
        yield
    except (FileNotFoundError, ImportError):
        raise
    # Arrow, FAISS, NumPy and bm25s raise errors of many kinds.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as {kind}. Remove it, and `python -m "
            f"export.index` {again}: {error}"
        ) from error
