"""A teacher's embeddings of texts: computed once, and kept in files.

Shape letters: N texts, D embedding size.
"""

import hashlib
import json
import pathlib

import numpy as np

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.files import replaced
from keras_fixedhead.progress import progress
from keras_fixedhead.text_encoder import TextEncoder

_TEXTS_PER_FILE = 4096
_BATCH_SIZE = 64


def teacher_embeddings(
    teacher: FixedHeadTextEmbedder,
    texts: list[str],
    folder: pathlib.Path,
    identity: dict,
    worker: tuple[int, int] = (0, 1),
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
        worker: Which this process is, from 0 on, of how many that share the
            work.
        prompt: Name of the prompt put before each text, or `None`.
        sequence_length: The most tokens of a text; `None` is the teacher's.

    Returns:
        float32 array `[N, D]`.

    Raises:
        OSError: The folder cannot be read or written.
        ValueError: A file is damaged, or an embedding is zero or not finite.
    """
    digest = hashlib.sha256(
        json.dumps([identity, texts], sort_keys=True).encode()
    )
    folder = folder / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    count = -(-len(texts) // _TEXTS_PER_FILE)
    paths = [folder / f"{i:05}.npy" for i in range(count)]
    # Side by side, they would all be at the same file.
    number, workers = worker
    first = number * count // workers
    encode = TextEncoder(teacher, sequence_length, _BATCH_SIZE)
    with progress("Embedding with the teacher", len(texts)) as advance:
        for i in range(count):
            i = (first + i) % count
            part = texts[i * _TEXTS_PER_FILE : (i + 1) * _TEXTS_PER_FILE]
            if not paths[i].exists():
                rows = encode(part, prompt, on_batch=advance)
                lengths = np.linalg.norm(rows, axis=1, keepdims=True)
                if not (np.isfinite(lengths) & (lengths > 0)).all():
                    raise ValueError(
                        "The teacher gives embeddings that are zero or not "
                        "finite: it is no teacher"
                    )
                rows /= lengths
                _write(paths[i], rows)
            else:
                advance(len(part))
    # Not all of it in memory twice.
    return np.concatenate([_read(path) for path in paths])


def _read(path):
    try:
        return np.load(path, mmap_mode="r")
    except (EOFError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error}). Remove it; the same command "
            "computes it anew"
        ) from error


def _write(path, array):
    with replaced(path) as partial, open(partial, "wb") as file:
        np.save(file, array)
