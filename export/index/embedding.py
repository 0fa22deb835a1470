"""Shards of a corpus embedded into the parts of an index folder.

`export.index.beam` hands the same work to the workers of an Apache Beam runner.
"""

import numpy as np

from export import progress
from export.index import corpus, parts

# Relative; half precision rounds by less when a text is in another batch.
_TOLERANCE = 0.03


def embed_shard(encoder, path, shard, folder, on_batch=None):
    """Embeds a shard and writes its part.

    Args:
        encoder: an `encoder.Encoder`.
        path: path of the corpus.
        shard: a `corpus.Shard` of it.
        folder: `pathlib.Path` of the index folder.
        on_batch: function called with the number of documents of each batch
            that is embedded.

    Raises:
        OSError: if the corpus cannot be read or the part not be written.
        ValueError: if the corpus has changed, or an embedding is not finite.
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


def missing(encoder, shards, folder):
    """Returns the shards whose part is not there, or is of another model.

    A SavedModel is known by its files. Of a server only name and version are
    known, under which another model may stand now: one document of each part
    is embedded again.
    """
    targets = {
        shard: parts.path_of(folder, shard, encoder.model) for shard in shards
    }
    written = [s for s in shards if parts.is_written(targets[s], s)]
    kept = set(written)
    if encoder.model.sha256 is None:
        paths = [targets[shard] for shard in written]
        alike = same_embeddings(encoder, paths)
        kept = {shard for shard, same in zip(written, alike) if same}
    return [shard for shard in shards if shard not in kept]


def same_embeddings(encoder, paths):
    """Whether the first vector of each part is what an encoder answers now.

    Args:
        encoder: an `encoder.Encoder`.
        paths: list of paths of parts.

    Returns:
        A list of `bool`.
    """
    if not paths:
        return []
    texts, stored = zip(*map(parts.first, paths))
    found = encoder.embed(list(texts), "document")
    return [
        kept.shape == new.shape
        and np.linalg.norm(kept - new) <= _TOLERANCE * np.linalg.norm(kept)
        for kept, new in zip(stored, found)
    ]


def run(encoder, path, shards, folder, kept):
    """Embeds shards in this process, with a progress bar on a terminal.

    Args:
        encoder: an `encoder.Encoder`.
        path: path of the corpus.
        shards: list of the `corpus.Shard`s to embed.
        folder: `pathlib.Path` of the index folder.
        kept: int, how many documents an earlier run has embedded.

    Raises:
        OSError, ValueError: as `embed_shard`.
    """
    total = kept + sum(shard.documents for shard in shards)
    with progress.documents("documents", total, kept) as advance:
        for shard in shards:
            embed_shard(encoder, path, shard, folder, advance)
