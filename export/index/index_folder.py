"""The folder of an index: manifest, parts, index of embeddings and BM25.

The manifest is written last and names the files that belong to it, so the
folder always holds either the whole previous index or the whole new one.
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
import typing
from collections.abc import Sequence

import numpy as np
import rich.console
from rich.progress import MofNCompleteColumn

from export.index import corpus as corpora
from export.index import manifest as manifests
from export.index import parts
from export.index.faiss_index import FaissIndex
from export.index.manifest import MANIFEST, SHARD_DOCUMENTS, Kind, Options
from export.model_source import Encoder, Model, Source
from keras_fixedhead import beir
from keras_fixedhead.files import replaced, write_json
from keras_fixedhead.progress import SpeedColumn, progress
from keras_fixedhead.retrieval import BM25

_CHECKED = 16  # parts of which a document is embedded before a search
_PACKAGES = ("keras_fixedhead", "bm25s", "numpy", "pyarrow")


@dataclasses.dataclass(frozen=True)
class Index:
    """An open index; row n of `vectors` and of `documents` belong together."""

    folder: pathlib.Path
    manifest: dict[str, typing.Any]
    model: Model
    options: Options
    vectors: FaissIndex
    documents: parts.Documents

    @functools.cached_property
    def bm25(self) -> BM25:
        """The BM25 of the documents."""
        name = self.manifest.get("bm25")
        if name is None:
            raise ValueError(
                f"The index {self.folder} holds no BM25. `python -m "
                "export.index` adds it; or search with --ranker encoder."
            )
        path, digest = self.folder / name, self.manifest.get("bm25_sha256")
        with manifests.reading(path, "BM25", "makes it again", digest):
            return BM25.load(path)

    def check(self, encoder: Encoder) -> None:
        """Raises a `ValueError` if an encoder is not that of the index."""
        difference = self.model.difference(encoder.model)
        if difference:
            raise ValueError(
                f"The index {self.folder} was made by another model: "
                f"{difference}. Search with that model."
            )
        if self.model.sha256 and encoder.model.sha256:
            return
        paths = self.documents.paths
        step = max(len(paths) // _CHECKED, 1)
        if not all(parts.same_embeddings(encoder, paths[::step])):
            raise ValueError(
                f"The index {self.folder} was made by another model: "
                f"{encoder.model} embeds its documents differently. Make the "
                "index again with `python -m export.index`."
            )

    def __str__(self) -> str:
        made = self.options
        numbers = f"{self.manifest['embedding_dim']} numbers"
        if made.dimension is not None:
            numbers = f"{made.dimension} ({made.reduction}) of {numbers}"
        approximate = ", approximate" if made.approximate else ""
        return (
            f"{self.manifest['documents']:,} documents, {numbers} in "
            f"{made.precision}{approximate}, by {self.model}"
        )


def _documents(folder, manifest):
    paths = [folder / parts.FOLDER / part["file"] for part in manifest["parts"]]
    counts = [part["documents"] for part in manifest["parts"]]
    return parts.Documents(paths, counts)


def load(folder: str | os.PathLike) -> Index:
    """Opens an index; raises a `ValueError` that names a broken file."""
    folder = pathlib.Path(folder)
    manifest = manifests.read(folder)
    if manifest is None:
        raise ValueError(
            f"`index` {folder} holds no complete index. `python -m "
            "export.index` makes one, and continues one."
        )
    documents = _documents(folder, manifest)
    for path, count in zip(documents.paths, documents.counts):
        parts.check(path, count)
    path = folder / manifest["index"]
    with manifests.reading(
        path,
        "an index of embeddings",
        "makes it again from the parts beside it",
        manifest.get("index_sha256"),
    ):
        vectors = Kind[path.suffix[1:]].index_class.read(path)
    model = Model(**manifest["model"])
    options = Options(**manifest["options"])
    return Index(folder, manifest, model, options, vectors, documents)


def update(
    folder: pathlib.Path,
    corpus: str | os.PathLike,
    source: Source,
    opened: Encoder,
    options: Options,
    shard_documents: int = SHARD_DOCUMENTS,
    runner: str | None = None,
    beam_options: Sequence[str] = (),
    bm25: bool = True,
    kind: Kind = Kind.faiss,
) -> tuple[Index, int]:
    """Returns the index of a corpus, and how many documents were embedded.

    The folder may be absent. `opened` is the encoder of `source`, which the
    workers of a Beam `runner` open themselves. `beam_options` are `NAME=VALUE`.
    """
    path = corpora.find(corpus)
    console = rich.console.Console(stderr=True)
    with console.status("reading the corpus"):
        shards, blank = corpora.plan(path, shard_documents)
    if blank:
        console.print(
            f"{path.name} is indexed {beir.count_blank(blank)}",
            highlight=False,
            markup=False,
        )
    (folder / parts.FOLDER).mkdir(parents=True, exist_ok=True)
    sweep(folder)
    missing = parts.missing(opened, shards, folder)
    total = sum(shard.documents for shard in shards)
    count = sum(shard.documents for shard in missing)
    if missing and options != Options():
        # Fails before all is embedded.
        first = corpora.read(path, shards[0])[1][:1]
        size = opened.embed(first, "document").shape[1]
        kind.index_class.check(total, size, **dataclasses.asdict(options))
    if runner is not None and missing:
        from export.index import beam

        console.print(f"{runner} embeds {count:,} documents")
        model = opened.model
        # Not a newer version, which a worker may find.
        pinned = dataclasses.replace(
            source, model_name=model.name, version=model.version
        )
        beam.run(
            pinned,
            path.resolve(),
            missing,
            folder.resolve(),
            model,
            runner,
            beam_options,
        )
    elif missing:
        columns = MofNCompleteColumn(), SpeedColumn()
        with progress(
            "documents", total, *columns, done=total - count
        ) as advance:
            for shard in missing:
                parts.embed_shard(opened, path, shard, folder, advance)
    _complete(folder, path.name, opened.model, shards, options, bm25, kind)
    sweep(folder, manifests.read(folder))
    return load(folder), count


def _complete(folder, corpus, model, shards, options, bm25, kind):
    """Indexes parts that are all there, and writes the manifest."""
    manifest = {
        "format": 1,
        "corpus": corpus,
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
    # Another index has another name, so that the previous one stays until the
    # manifest is replaced.
    index = f"index-{_digest(manifest)}.{kind.name}"
    words = f"bm25-{_digest([s.sha256 for s in shards])}" if bm25 else None
    before = manifests.read(folder) or {}
    has_index = before.get("index") == index and (folder / index).is_file()
    has_words = words is None or (folder / words).is_dir()
    if has_index and has_words and before.get("bm25") == words:
        return
    documents = _documents(folder, manifest)
    if not has_words:
        _write_bm25(folder / words, documents)
    if has_index:
        size = before["embedding_dim"]
    else:
        vectors, size = _build(documents, options, kind.index_class)
        with replaced(folder / index) as partial:
            vectors.write(partial)
    words_files = [*(folder / words).iterdir()] if words else []
    manifest |= {
        "index": index,
        "index_bytes": (folder / index).stat().st_size,
        "index_sha256": manifests.digest(folder / index),
        "embedding_dim": size,
        "bm25": words,
        "bm25_sha256": manifests.digest(folder / words) if words else None,
        "bm25_bytes": sum(file.stat().st_size for file in words_files),
        "created": datetime.datetime.now(datetime.UTC).isoformat(
            "T", "seconds"
        ),
        "versions": {
            name: importlib.metadata.version(name)
            for name in (*_PACKAGES, kind.index_class.PACKAGE)
        },
    }
    write_json(folder / MANIFEST, manifest)


def _digest(values):
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _write_bm25(path, documents):
    """Writes the folder of BM25 over the parts, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    count = sum(documents.counts)
    try:
        with progress("BM25", count, MofNCompleteColumn()) as advance:

            def texts():
                for _, text in documents:
                    yield text
                    advance(1)

            BM25(texts()).save(partial)
        os.replace(partial, path)
    except ValueError as error:
        raise ValueError(f"{error}. Pass --no_bm25.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _build(documents, options, index_class):
    """Returns the index of the parts, which are read one at a time, and D."""
    count = sum(documents.counts)
    drawn = np.linspace(0, count - 1, min(count, index_class.SAMPLE))
    drawn, sample, start = drawn.astype(int), [], 0
    for path, size in zip(documents.paths, documents.counts):
        rows = drawn[(start <= drawn) & (drawn < start + size)]
        if len(rows):
            sample.append(parts.vectors(path)[rows - start])
        start += size
    rows = np.concatenate(sample)
    index = index_class.train(rows, **dataclasses.asdict(options))
    with progress("index", count, MofNCompleteColumn()) as advance:
        for path, size in zip(documents.paths, documents.counts):
            index.add(parts.vectors(path))
            advance(size)
    return index, rows.shape[1]


def sweep(folder: pathlib.Path, manifest: dict | None = None) -> None:
    """Removes what a killed run has left, and all indexes and parts that a
    manifest does not name."""
    unneeded = [*folder.glob(".*.partial"), *folder.glob("*/.*.partial")]
    if manifest:
        named = {part["file"] for part in manifest["parts"]}
        named |= {manifest["index"], manifest.get("bm25")}
        for pattern in ("index-*", "bm25-*", f"{parts.FOLDER}/*.parquet"):
            unneeded += [p for p in folder.glob(pattern) if p.name not in named]
    for path in unneeded:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
