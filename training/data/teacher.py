"""A teacher's embeddings of texts: computed once, and kept in files.

Shape letters: N texts, D embedding size.
"""

import hashlib
import json
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.progress import Progress

from keras_fixedhead import FixedHeadTextEmbedder

_TEXTS_PER_FILE = 4096
_BATCH_SIZE = 64


def teacher_embeddings(
    teacher: FixedHeadTextEmbedder,
    texts: list[str],
    folder: pathlib.Path,
    identity: dict,
    first: int = 0,
    prompt: str | None = None,
    sequence_length: int | None = None,
) -> np.ndarray:
    """Embeddings of texts, of unit length, from files where they are there.

    Each file is written whole or not at all, so work that was interrupted is
    continued. Several workers on one folder share it.

    Args:
        teacher: Computes what is not there.
        texts: N strings.
        folder: Holds a folder for each identity and list of texts.
        identity: JSON values that decide the embeddings of a text.
        first: Which file to begin with, another one for each worker.
        prompt: Name of the prompt put before each text, or `None`.
        sequence_length: The most tokens of a text; `None` is the teacher's.

    Returns:
        float32 array `[N, D]`.

    Raises:
        OSError: The folder cannot be read or written.
    """
    digest = hashlib.sha256(
        json.dumps([identity, texts], sort_keys=True).encode()
    )
    folder = folder / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    count = -(-len(texts) // _TEXTS_PER_FILE)
    paths = [folder / f"{i:05}.npy" for i in range(count)]
    embed = tf.function(teacher.embed_packed, reduce_retracing=True)
    with Progress(
        console=Console(stderr=True), disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("Embedding with the teacher", total=len(texts))
        for i in range(count):
            i = (first + i) % count
            part = texts[i * _TEXTS_PER_FILE : (i + 1) * _TEXTS_PER_FILE]
            if not paths[i].exists():
                rows = np.empty((len(part), teacher.backbone.hidden_dim))
                # Of like lengths, a batch has little padding.
                order = np.argsort([len(text) for text in part])
                for start in range(0, len(part), _BATCH_SIZE):
                    chosen = order[start : start + _BATCH_SIZE]
                    inputs = teacher.preprocessor.pad_to_longest(
                        tf.constant([part[row] for row in chosen]),
                        prompt=prompt,
                        sequence_length=sequence_length,
                    )
                    rows[chosen] = embed(inputs).numpy()
                    progress.advance(task, len(chosen))
                rows /= np.linalg.norm(rows, axis=1, keepdims=True)
                _write(paths[i], rows.astype("float32"))
            else:
                progress.advance(task, len(part))
    return np.concatenate([np.load(path) for path in paths])


def principal_components(vectors: np.ndarray, size: int) -> np.ndarray:
    """The directions along which vectors are longest, not centred.

    Args:
        vectors: Float array `[N, D]`.
        size: How many; beyond D they are zero.

    Returns:
        Float64 array `[D, size]`, orthonormal columns.
    """
    vectors = vectors.astype("float64")
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    # The last are the longest.
    directions = directions[:, ::-1][:, :size]
    missing = size - directions.shape[1]
    return np.pad(directions, ((0, 0), (0, missing)))


def _write(path, array):
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            np.save(file, array)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
