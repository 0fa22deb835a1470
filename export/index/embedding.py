"""Shards of a corpus embedded into the parts of an index folder.

`export.index.beam` does the same on the workers of an Apache Beam runner.
"""

import pathlib

import numpy as np

from export.batches import OnBatch
from export.encoder import Encoder
from export.index import corpus, parts

# Relative; half precision rounds by less when a text is in another batch.
_TOLERANCE = 0.03


def embed_shard(
    encoder: Encoder,
    path: pathlib.Path,
    shard: corpus.Shard,
    folder: pathlib.Path,
    on_batch: OnBatch = None,
) -> None:
    """Embeds a shard of the corpus `path` and writes its part.

    `on_batch` is called with the number of documents of each embedded batch.
    """
    names, texts = corpus.read(path, shard)
    vectors = encoder.embed(texts, "document", on_batch)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        name = names[int(np.argmin(finite))]
        raise ValueError(
            f"{encoder.model} embeds document {name!r} of {path} as numbers "
            "that are not finite. Check the model: python -m export.verify."
        )
    target = parts.path_of(folder, shard, encoder.model)
    parts.write(target, names, texts, vectors, encoder.model, shard)


def missing(
    encoder: Encoder, shards: list[corpus.Shard], folder: pathlib.Path
) -> list[corpus.Shard]:
    """Returns the shards whose part is not there, or is of another model.

    Files identify a SavedModel, but a server shows only name and version,
    which another model may have now: so one document of each part is embedded
    again.
    """
    written = {}
    for shard in shards:
        target = parts.path_of(folder, shard, encoder.model)
        if parts.is_written(target, shard):
            written[shard] = target
    if encoder.model.sha256 is None:
        alike = same_embeddings(encoder, list(written.values()))
        written = {shard for shard, same in zip(written, alike) if same}
    return [shard for shard in shards if shard not in written]


def same_embeddings(encoder: Encoder, paths: list[pathlib.Path]) -> list[bool]:
    """Whether an encoder still returns the first vector of each part."""
    if not paths:
        return []
    texts, stored = zip(*map(parts.first, paths))
    found = encoder.embed(list(texts), "document")
    return [
        kept.shape == new.shape
        and np.linalg.norm(kept - new) <= _TOLERANCE * np.linalg.norm(kept)
        for kept, new in zip(stored, found)
    ]
