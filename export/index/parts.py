"""Shards of a corpus embedded, and kept as Parquet files.

Vector databases load the files, too. A part has the columns `id`, `text` and
`vector` (a list of D float32), and the model and the shard in the metadata of
its schema. Its name is a digest of both, so parts of an older corpus or of
another model stay until the new index is complete.

Shape letters: N documents, D embedding size.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from export.batches import OnBatch
from export.index import corpus
from export.index.corpus import Shard
from export.index.manifest import reading
from export.model_source import Encoder, Model
from keras_fixedhead.files import replaced

FOLDER = "parts"
_GROUP = 1024  # rows that are read for the text of one hit
_OPEN_FILES = 64
# Relative; half precision rounds by less when a text is in another batch.
_TOLERANCE = 0.03


def path_of(folder: pathlib.Path, shard: Shard, model: Model) -> pathlib.Path:
    """Returns the path of a shard's part in an index folder."""
    key = json.dumps([shard.sha256, model.key]).encode()
    name = hashlib.sha256(key).hexdigest()[:32]
    return folder / FOLDER / f"{name}.parquet"


def embed_shard(
    encoder: Encoder,
    path: pathlib.Path,
    shard: Shard,
    folder: pathlib.Path,
    on_batch: OnBatch = None,
) -> None:
    """Embeds a shard of the corpus `path` and writes its part."""
    names, texts = corpus.read(path, shard)
    vectors = encoder.embed(texts, "document", on_batch)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        name = names[int(np.argmin(finite))]
        raise ValueError(
            f"{encoder.model} embeds document {name!r} of {path} as numbers "
            "that are not finite. Check the model: python -m export.verify."
        )
    target = path_of(folder, shard, encoder.model)
    write(target, names, texts, vectors, encoder.model, shard)


def write(
    path: pathlib.Path,
    names: list[str],
    texts: list[str],
    vectors: np.ndarray,
    model: Model,
    shard: Shard,
) -> None:
    """Writes N documents with vectors `[N, D]`, as a whole or not at all."""
    number = pa.field("element", pa.float32(), nullable=False)
    vector = pa.list_(number, vectors.shape[1])
    kinds = {"id": pa.string(), "text": pa.string(), "vector": vector}
    schema = pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in kinds.items()],
        {
            "model": json.dumps(dataclasses.asdict(model)),
            "shard_sha256": shard.sha256,
        },
    )
    numbers = pa.array(vectors.ravel())
    rows = pa.FixedSizeListArray.from_arrays(numbers, type=vector)
    columns = {"id": names, "text": texts, "vector": rows}
    with replaced(path) as partial:
        pq.write_table(
            pa.table(columns, schema=schema),
            partial,
            row_group_size=_GROUP,
            # Neither identifiers nor numbers of embeddings repeat.
            use_dictionary=False,
            compression={
                "id": "zstd",
                "text": "zstd",
                "vector.list.element": "none",
            },
        )


def missing(
    encoder: Encoder, shards: list[Shard], folder: pathlib.Path
) -> list[Shard]:
    """Returns the shards whose part is not there, or is of another model."""
    paths = {shard: path_of(folder, shard, encoder.model) for shard in shards}
    written = {shard: path for shard, path in paths.items() if path.exists()}
    if encoder.model.sha256 is None:
        # A server shows only name and version, which another model may have.
        alike = same_embeddings(encoder, list(written.values()))
        written = {s: written[s] for s, same in zip(written, alike) if same}
    return [shard for shard in shards if shard not in written]


def same_embeddings(encoder: Encoder, paths: list[pathlib.Path]) -> list[bool]:
    """Whether an encoder still returns the first vector of each part."""
    if not paths:
        return []
    texts, stored = zip(*map(first, paths))
    found = encoder.embed(list(texts), "document")
    return [
        kept.shape == new.shape
        and np.linalg.norm(kept - new) <= _TOLERANCE * np.linalg.norm(kept)
        for kept, new in zip(stored, found)
    ]


def _reading(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    return reading(path, "a part of an index", "embeds its documents again")


def check(path: pathlib.Path, documents: int) -> None:
    """Raises a `ValueError` if a part has another number of documents."""
    with _reading(path):
        found = pq.read_metadata(path).num_rows
        if found != documents:
            raise ValueError(f"it has {found} documents, not {documents}")


def first(path: pathlib.Path) -> tuple[str, np.ndarray]:
    """Returns the text and the vector, float32 `[D]`, of the first row."""
    with _reading(path):
        group = pq.ParquetFile(path).read_row_group(0, ["text", "vector"])
        return group["text"][0].as_py(), _matrix(group["vector"])[0]


def vectors(path: pathlib.Path) -> np.ndarray:
    """Reads the vectors of a part, float32 `[N, D]`."""
    with _reading(path):
        return _matrix(pq.read_table(path, columns=["vector"])["vector"])


def _matrix(column):
    numbers = column.combine_chunks().flatten().to_numpy()
    return numbers.reshape(len(column), -1)


class Documents:
    """The documents of an index by their row, read when they are needed.

    `counts` are the numbers of documents of the parts `paths`.
    """

    def __init__(self, paths: list[pathlib.Path], counts: list[int]):
        self.paths, self.counts = paths, counts
        self._ends = np.cumsum(counts)
        self._opened = functools.lru_cache(_OPEN_FILES)(
            lambda part: pq.ParquetFile(paths[part], memory_map=True)
        )

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields the identifier and the text of each document."""
        for path in self.paths:
            with _reading(path):
                table = pq.read_table(path, columns=["id", "text"])
            yield from zip(
                table["id"].to_pylist(), table["text"].to_pylist(), strict=True
            )

    def __getitem__(self, row: int) -> tuple[str, str]:
        """Returns the identifier and the text of a document."""
        part = int(np.searchsorted(self._ends, row, side="right"))
        with _reading(self.paths[part]):
            file = self._opened(part)
            offset = int(row - self._ends[part]) + file.metadata.num_rows
            group, place = divmod(offset, file.metadata.row_group(0).num_rows)
            found = file.read_row_group(group, ["id", "text"])
            return found["id"][place].as_py(), found["text"][place].as_py()
