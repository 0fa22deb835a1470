"""Embedded shards as Parquet files, which vector databases load too.

A part has the columns `id`, `text` and `vector` (a list of D float32), and the
model and the shard in the metadata of its schema. Its name says what it holds,
so parts of an older corpus or of another model stay as they are until the new
index is complete.

Shape letters: N documents, D embedding size.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keras_fixedhead.files import replaced

FOLDER = "parts"
# What is read for one text of a hit.
_GROUP = 1024
_OPEN_FILES = 64


def path_of(folder, shard, model):
    """Returns the path of a shard's part in an index folder."""
    key = json.dumps([shard.sha256, model.key]).encode()
    name = hashlib.sha256(key).hexdigest()[:32]
    return folder / FOLDER / f"{name}.parquet"


def write(path, names, texts, vectors, model, shard):
    """Writes a part, as a whole or not at all.

    Args:
        path: what `path_of` returned.
        names: list of N identifiers.
        texts: list of N texts.
        vectors: float32 array `[N, D]`.
        model: the `encoder.Model`.
        shard: the `corpus.Shard`.

    Raises:
        OSError: if it cannot be written.
    """
    schema = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field(
                "vector",
                pa.list_(
                    pa.field("element", pa.float32(), nullable=False),
                    vectors.shape[1],
                ),
                nullable=False,
            ),
        ],
        {
            "model": json.dumps(dataclasses.asdict(model)),
            "shard_sha256": shard.sha256,
        },
    )
    table = pa.table(
        [
            pa.array(names, pa.string()),
            pa.array(texts, pa.string()),
            pa.FixedSizeListArray.from_arrays(
                pa.array(vectors.ravel()), type=schema.field("vector").type
            ),
        ],
        schema=schema,
    )
    with replaced(path) as partial:
        pq.write_table(
            table,
            partial,
            row_group_size=_GROUP,
            # Numbers of embeddings repeat as little as identifiers do.
            use_dictionary=False,
            compression={
                "id": "zstd",
                "text": "zstd",
                "vector.list.element": "none",
            },
        )


def is_written(path, shard):
    """Whether the part of a shard is there."""
    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid):
        return False
    digest = (metadata.metadata or {}).get(b"shard_sha256", b"").decode()
    return digest == shard.sha256 and metadata.num_rows == shard.documents


def check(path, documents, size):
    """Checks the structure of a part.

    Args:
        path: of the part.
        documents: int, how many it must have.
        size: int, D of its vectors.

    Raises:
        OSError: if it is missing.
        ValueError: if it is something else; the message names it.
    """
    with _reading(path):
        file = pq.ParquetFile(path)
        schema, metadata = file.schema_arrow, file.metadata
        file.close()
        if metadata.num_rows != documents:
            raise ValueError(
                f"it has {metadata.num_rows} documents, not {documents}"
            )
        for name in ("id", "text"):
            if schema.field(name).type != pa.string():
                raise ValueError(f"its column {name} is no string")
        kind = schema.field("vector").type
        if (
            not pa.types.is_fixed_size_list(kind)
            or kind.value_type != pa.float32()
            or kind.list_size != size
        ):
            raise ValueError(f"its vectors are {kind}, not {size} of float32")
        groups = [
            metadata.row_group(i).num_rows
            for i in range(metadata.num_row_groups)
        ]
        if len({*groups[:-1]}) > 1 or not 0 < groups[-1] <= groups[0]:
            raise ValueError(f"its row groups have {groups} rows")


@contextlib.contextmanager
def _reading(path):
    """Names a part that cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise
    # An IndexError and a KeyError come from columns and rows that are absent.
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        raise ValueError(
            f"{path} cannot be read as a part of an index. Remove it, and "
            f"`python -m export.index` embeds its documents again: {error}"
        ) from error


def first(path):
    """Returns the text and the vector, float32 `[D]`, of the first row."""
    with _reading(path):
        group = pq.ParquetFile(path).read_row_group(0, ["text", "vector"])
        return group["text"][0].as_py(), _matrix(group["vector"])[0]


def vectors(path):
    """Reads the vectors of a part, float32 `[N, D]`."""
    with _reading(path):
        return _matrix(pq.read_table(path, columns=["vector"])["vector"])


def _matrix(column):
    return np.concatenate(
        [
            chunk.flatten().to_numpy().reshape(len(chunk), -1)
            for chunk in column.chunks
        ]
    )


class Documents:
    """The documents of an index by their row, read as they are asked for.

    Args:
        paths: list of the parts' paths.
        counts: list of their numbers of documents.
    """

    def __init__(self, paths, counts):
        self._paths = paths
        self._ends = np.cumsum(counts)
        self._opened = functools.lru_cache(_OPEN_FILES)(
            lambda part: pq.ParquetFile(self._paths[part], memory_map=True)
        )

    def __iter__(self):
        """Yields the identifier and the text of each document."""
        for path in self._paths:
            with _reading(path):
                table = pq.read_table(path, columns=["id", "text"])
            yield from zip(
                table["id"].to_pylist(), table["text"].to_pylist(), strict=True
            )

    def __getitem__(self, row):
        """Returns the identifier and the text of a document.

        Raises:
            IndexError: if there is no such row.
            OSError: if a part is missing.
            ValueError: if a part is broken.
        """
        if not 0 <= row < self._ends[-1]:
            raise IndexError(f"There is no row {row} in {self._ends[-1]}.")
        part = int(np.searchsorted(self._ends, row, side="right"))
        with _reading(self._paths[part]):
            file = self._opened(part)
            offset = int(row - self._ends[part]) + file.metadata.num_rows
            group, place = divmod(offset, file.metadata.row_group(0).num_rows)
            found = file.read_row_group(group, ["id", "text"])
            return found["id"][place].as_py(), found["text"][place].as_py()
