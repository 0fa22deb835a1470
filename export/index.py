"""The index of a collection, embedded by a server and kept in a folder.

Shape letters: N documents, D embedding size.
"""

import json

import faiss
import numpy as np
import rich.console
import rich.progress

from keras_fixedhead import retrieval
from keras_fixedhead.files import replaced, write_json

_INDEX, _KEY = "index.faiss", "index.json"
_SAMPLE = 16  # documents embedded again before an index is used again
_TOLERANCE = 1e-4


def embed(connection, texts, kind, batch_size, label):
    """Embeds texts through a server, with a progress bar on a terminal.

    Args:
        connection: a `client.Client`.
        texts: list of N texts.
        kind: "document" or "query".
        batch_size: int, texts per request.
        label: str, what the bar says.

    Returns:
        float32 array `[N, D]`.
    """
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.MofNCompleteColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(label, total=len(texts))
        return connection.embed(
            texts,
            kind,
            batch_size,
            on_batch=lambda done: progress.advance(task, done),
        )


def _read(folder, key, connection, collection, batch_size):
    """Reads a kept index; None if there is none for this model and these
    documents."""
    try:
        kept = json.loads((folder / _KEY).read_text(encoding="utf-8"))
        index = faiss.read_index(str(folder / _INDEX))
    except (OSError, ValueError, RuntimeError):
        return None
    if kept != key or index.ntotal != len(collection.documents):
        return None
    # Another model may have been exported under the same number.
    rows = np.linspace(0, index.ntotal - 1, _SAMPLE).astype(int)
    sample = connection.embed(
        [collection.documents[row] for row in rows], "document", batch_size
    )
    stored = np.stack([index.reconstruct(int(row)) for row in rows])
    if stored.shape != sample.shape or not np.allclose(
        stored, sample, rtol=0, atol=_TOLERANCE
    ):
        return None
    return index


def write(path, index):
    """Writes a FAISS index, as a whole or not at all."""
    with replaced(path) as partial:
        faiss.write_index(index, str(partial))


def build_or_read(folder, connection, collection, batch_size):
    """Gives the index of a collection, embedding it only if it must.

    A kept index is used again if it is of the same documents, model name and
    version, and a sample of the documents embedded now is what it holds. It
    is flat, so it holds the embeddings themselves.

    Args:
        folder: path of the folder that keeps the index.
        connection: a `client.Client`.
        collection: a `Collection` of N documents.
        batch_size: int, texts per request.

    Returns:
        The FAISS index, and whether it was kept from before.
    """
    key = {
        "model_name": connection.model_name,
        "model_version": connection.version(),
        "documents_sha256": collection.fingerprint(),
    }
    index = _read(folder, key, connection, collection, batch_size)
    if index is not None:
        return index, True
    embeddings = embed(
        connection, collection.documents, "document", batch_size, "documents"
    )
    index = retrieval.build_index(embeddings)
    # The key last: without it an index is not used again.
    (folder / _KEY).unlink(missing_ok=True)
    write(folder / _INDEX, index)
    write_json(folder / _KEY, key)
    return index, False
