"""The folder of an index: manifest, parts, FAISS index and BM25.

The manifest is written last and names the files that belong to it, so the
folder always holds either the whole index of before or the whole new one.

Shape letters: N documents, D embedding size.
"""

import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shutil

import faiss
import numpy as np

from export import progress
from export.encoder import Model
from export.index import embedding, parts
from export.index import manifest as manifests
from export.index.manifest import MANIFEST
from export.index.options import Options
from keras_fixedhead import retrieval
from keras_fixedhead.bm25 import BM25
from keras_fixedhead.files import replaced, write_json

_SAMPLE = 65_536  # vectors that an index is trained on, at most
_BLOCK_BYTES = 2**20
_CHECKED = 16  # parts of which a document is embedded before a search
_PACKAGES = ("keras_fixedhead", "bm25s", "faiss-cpu", "numpy", "pyarrow")


@dataclasses.dataclass(frozen=True)
class Index:
    """An index that is open.

    Attributes:
        folder: its path.
        manifest: what the file `MANIFEST` holds.
        model: the `encoder.Model` of its embeddings.
        options: its `Options`.
        vectors: the FAISS index of N documents.
        documents: a `parts.Documents`, identifiers and texts by row.
    """

    folder: pathlib.Path
    manifest: dict
    model: Model
    options: Options
    vectors: faiss.Index
    documents: parts.Documents

    @functools.cached_property
    def bm25(self):
        """The `BM25` of the documents.

        Raises:
            ImportError: if bm25s is not installed.
            ValueError: if the folder holds none, or it is broken.
        """
        name = self.manifest.get("bm25")
        if name is None:
            raise ValueError(
                f"The index {self.folder} holds no BM25. `python -m "
                "export.index` adds it and embeds nothing again; or search "
                "with --ranker encoder."
            )
        path = self.folder / name
        try:
            manifests.check_digest(path, self.manifest.get("bm25_sha256"))
            bm25 = BM25.load(path)
            if len(bm25) != self.manifest["documents"]:
                raise ValueError(
                    f"it has {len(bm25)} documents, the index "
                    f"{self.manifest['documents']}"
                )
            return bm25
        except ImportError:
            raise
        # NumPy and bm25s raise errors of many kinds, such as TokenError.
        except Exception as error:
            raise ValueError(
                f"{path} cannot be read as BM25. Remove it, and `python -m "
                f"export.index` makes it again: {error}"
            ) from error

    def check(self, encoder):
        """Raises a `ValueError` if an encoder is not that of the index."""
        difference = self.model.difference(encoder.model)
        if difference:
            raise ValueError(
                f"The index {self.folder} was made by another model: "
                f"{difference}. Embeddings of two models cannot be compared: "
                "search with that model, or make an index of this one."
            )
        if self.model.sha256 and encoder.model.sha256:
            return
        names = [part["file"] for part in self.manifest["parts"]]
        step = max(len(names) // _CHECKED, 1)
        paths = [self.folder / parts.FOLDER / name for name in names[::step]]
        if not all(embedding.same_embeddings(encoder, paths)):
            raise ValueError(
                f"The index {self.folder} was made by another model than the "
                f"{encoder.model} of today: it embeds the same documents "
                "otherwise. Make the index again with `python -m "
                "export.index`."
            )

    def __str__(self):
        """Says in a line what the index holds."""
        made = self.options
        numbers = f"{self.manifest['embedding_dim']} numbers"
        if made.dimension is not None:
            numbers = f"{made.dimension} ({made.reduction}) of {numbers}"
        words = [
            f"{self.manifest['documents']:,} documents",
            f"{numbers} in {made.precision}",
            *(["approximate"] if made.approximate else []),
            f"by {self.model}",
        ]
        return ", ".join(words)


def load(folder):
    """Opens an index.

    Raises:
        OSError: if a file is missing.
        ValueError: if there is no complete index, or a file of it is broken
            or not what the manifest says; the message names it.
    """
    folder = pathlib.Path(folder)
    manifest = manifests.read(folder)
    if manifest is None:
        raise ValueError(
            f"`index` {folder} holds no complete index ({MANIFEST} is not "
            "there). `python -m export.index` makes one, and continues one "
            "that was interrupted."
        )
    listed = [
        (folder / parts.FOLDER / part["file"], part["documents"])
        for part in manifest["parts"]
    ]
    for path, count in listed:
        parts.check(path, count, manifest["embedding_dim"])
    vectors = _read_vectors(folder / manifest["index"], manifest)
    return Index(
        folder,
        manifest,
        Model(**manifest["model"]),
        Options(**manifest["options"]),
        vectors,
        parts.Documents(*zip(*listed)),
    )


def _read_vectors(path, manifest):
    """Returns the FAISS index.

    Damage is found before FAISS reads the file. That is no protection from
    whoever writes the manifest, too.
    """
    try:
        manifests.check_digest(path, manifest.get("index_sha256"))
        size = path.stat().st_size
        if size != manifest.get("index_bytes", size):
            raise ValueError(
                f"it has {size} bytes, not {manifest['index_bytes']}"
            )
        vectors = faiss.read_index(str(path))
        found = vectors.ntotal, vectors.d
        expected = manifest["documents"], manifest["embedding_dim"]
        if found != expected:
            raise ValueError(
                f"it has {found[0]} vectors of size {found[1]}, {MANIFEST} "
                f"states {expected[0]} of size {expected[1]}"
            )
        return vectors
    except (RuntimeError, MemoryError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as a FAISS index. Remove it, and `python "
            "-m export.index` makes it again from the parts beside it: "
            f"{error}"
        ) from error


def complete(folder, path, model, shards, options, bm25):
    """Makes what is searched of parts that are all there, and the manifest.

    Args:
        folder: `pathlib.Path` of the index folder.
        path: path of the corpus, for its name.
        model: the `encoder.Model` of the parts.
        shards: list of the `corpus.Shard`s.
        options: the `Options`.
        bm25: bool, whether to make BM25 beside the FAISS index.

    Raises:
        OSError: if a file cannot be written.
        ValueError: if the options do not suit the embeddings, or no document
            has a word for BM25.
    """
    manifest = {
        "format": 1,
        "corpus": path.name,
        "documents": sum(shard.documents for shard in shards),
        "model": dataclasses.asdict(model),
        "options": dataclasses.asdict(options),
        "parts": [
            {
                "file": parts.path_of(folder, shard, model).name,
                "documents": shard.documents,
                "sha256": shard.sha256,
            }
            for shard in shards
        ],
    }
    # Another index gets another name, so that this one's stays until then.
    index = f"index-{_digest(manifest)}.faiss"
    words = f"bm25-{_digest([s.sha256 for s in shards])}" if bm25 else None
    before = manifests.read(folder) or {"index": None}
    has_index = before["index"] == index and (folder / index).is_file()
    has_words = words is None or (folder / words).is_dir()
    is_checked = before.get("index_sha256") and (
        words is None or before.get("bm25_sha256")
    )
    if has_index and has_words and is_checked and before.get("bm25") == words:
        return
    if not has_words:
        _write_bm25(folder, words, manifest)
    if has_index:
        size = before["embedding_dim"]
    else:
        vectors = _build(folder, manifest, options)
        size = vectors.d
        with replaced(folder / index) as partial:
            _write(partial, vectors)
    manifest |= {
        "index": index,
        "index_bytes": (folder / index).stat().st_size,
        "index_sha256": manifests.digest(folder / index),
        "embedding_dim": size,
        "bm25": words,
        "bm25_sha256": manifests.digest(folder / words) if words else None,
        "bm25_bytes": sum(
            file.stat().st_size for file in (folder / words).iterdir()
        )
        if words
        else 0,
        "created": datetime.datetime.now(datetime.UTC).isoformat(
            "T", "seconds"
        ),
        "versions": {
            name: importlib.metadata.version(name) for name in _PACKAGES
        },
    }
    write_json(folder / MANIFEST, manifest)


def _digest(values):
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _write_bm25(folder, name, manifest):
    """Writes the folder of BM25 over the parts, whole or not at all."""
    paths = [folder / parts.FOLDER / p["file"] for p in manifest["parts"]]
    counts = [part["documents"] for part in manifest["parts"]]
    partial = folder / f".{name}.partial"
    try:
        with progress.documents("BM25", manifest["documents"]) as advance:

            def texts():
                for _, text in parts.Documents(paths, counts):
                    yield text
                    advance(1)

            BM25(texts()).save(partial)
        for file in partial.iterdir():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
        os.replace(partial, folder / name)
    except ValueError as error:
        raise ValueError(f"{error}. Pass --no_bm25.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _build(folder, manifest, options):
    """Returns the FAISS index of the parts, read one at a time."""
    listed = manifest["parts"]
    paths = [folder / parts.FOLDER / part["file"] for part in listed]
    count = manifest["documents"]
    rows = np.linspace(0, count - 1, min(count, _SAMPLE)).astype(int)
    sample, start = [], 0
    for part, path in zip(listed, paths):
        end = start + part["documents"]
        drawn = rows[(start <= rows) & (rows < end)]
        if len(drawn):
            sample.append(parts.vectors(path)[drawn - start])
        start = end
    index = retrieval.new_index(
        np.concatenate(sample), **dataclasses.asdict(options)
    )
    with progress.documents("index", count) as advance:
        for part, path in zip(listed, paths):
            index.add(parts.vectors(path))
            advance(part["documents"])
    return index


def _write(path, index):
    # FAISS does not look whether the end of a file that it opens is written.
    with open(path, "wb") as stream:
        writer = faiss.PyCallbackIOWriter(stream.write, _BLOCK_BYTES)
        faiss.write_index(index, writer)


def sweep(folder, everything=False):
    """Removes what a killed run has left, or (`everything`) all files of a
    folder that its manifest does not name."""
    for path in [*folder.glob(".*.partial"), *folder.glob("*/.*.partial")]:
        _remove(path)
    if everything:
        manifest = manifests.read(folder)
        named = {part["file"] for part in manifest["parts"]}
        named |= {manifest["index"], manifest["bm25"]}
        for pattern in ("index-*.faiss", "bm25-*", f"{parts.FOLDER}/*.parquet"):
            for path in folder.glob(pattern):
                if path.name not in named:
                    _remove(path)


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
