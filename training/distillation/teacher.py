"""A teacher's embeddings of texts: computed once, and kept in files."""

import hashlib
import json
import pathlib

import numpy as np

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.files import replaced
from keras_fixedhead.progress import progress

_TEXTS_PER_FILE = 4096
_BATCH_SIZE = 64


def teacher_embeddings(
    teacher: FixedHeadTextEmbedder,
    texts: list[str],
    folder: pathlib.Path,
    sha256: str,
    prompt: str | None = None,
    sequence_length: int | None = None,
    worker: tuple[int, int] = (0, 1),
) -> np.ndarray:
    """Returns a teacher's embeddings, float32 `[N, D]`, of unit length.

    Reads those that are in `folder` for the same teacher, by its checksum
    `sha256`, and the same other arguments. Each file is written whole or not
    at all, so interrupted work continues. `worker` is this process's number
    and how many processes share the folder and the work.
    """
    identity = {
        "teacher": sha256,
        "prompt": prompt,
        "sequence_length": sequence_length,
    }
    digest = hashlib.sha256(
        json.dumps([identity, texts], sort_keys=True).encode()
    )
    folder = folder / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    count = -(-len(texts) // _TEXTS_PER_FILE)
    paths = [folder / f"{i:05}.npy" for i in range(count)]
    # Each worker begins elsewhere, or all would compute the same file.
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
                        "The teacher returned embeddings that are zero or not "
                        "finite. Use another `teacher`"
                    )
                _write(paths[i], rows / lengths)
            else:
                advance(len(part))
    # Memory maps, so that memory does not hold everything twice.
    return np.concatenate([_read(path) for path in paths])


def _read(path):
    try:
        return np.load(path, mmap_mode="r")
    except (EOFError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error}). Remove it and run the same command "
            "again to compute it"
        ) from error


def _write(path, array):
    with replaced(path) as partial, open(partial, "wb") as file:
        np.save(file, array)
