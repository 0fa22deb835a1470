"""A teacher's embeddings: of texts, kept in files and read in batches, and of
its tokens.

Shape letters: M texts of this replica, N all texts, T length, E embedding size
of the teacher.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable

import keras
import numpy as np
import pyarrow.parquet
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.files import replaced
from keras_fixedhead.progress import progress
from keras_fixedhead.retrieval import principal_components
from training.engine.global_batch import ExampleBatches, tokenized

_TEXTS_PER_FILE = 4096
_BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class TaughtTexts:
    """Texts, and the teacher's embeddings of them, float32 `[N, E]`."""

    texts: list[str]
    embeddings: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)


@dataclasses.dataclass
class TaughtBatches(ExampleBatches):
    """Batches of the model's inputs, int32 `[M, T]`, and `teacher`, `[M, E]`.

    `prompt` names the prompt to put before each text.
    """

    prompt: str | None = None

    def reader(self, examples: TaughtTexts) -> Callable:
        # A GPU has better use for its memory.
        with tf.device("cpu"):
            texts = tf.constant(examples.texts)
            embeddings = tf.constant(examples.embeddings)

        def batch(numbers):
            features = tokenized(
                self.preprocessor,
                tf.gather(texts, numbers),
                self.prompt,
                self.preprocessor.sequence_length,
                fixed_size=not self.packed,
            )
            return {
                **features,
                "teacher": tf.gather(embeddings, numbers),
                "index": numbers,
            }

        return batch


def read_embeddings(
    path: pathlib.Path, texts: list[str]
) -> tuple[np.ndarray, str]:
    """Reads embeddings of texts that another framework computed.

    From .npy `[N, E]`, in the order of the texts, or .parquet with the columns
    `text` and `embedding`. Returns float32 `[N, E]` of unit length, and the
    checksum of the file.
    """
    if path.suffix == ".npy":
        rows = np.load(path, allow_pickle=False)
        if rows.ndim != 2 or len(rows) != len(texts):
            raise ValueError(
                f"{path} must have a row for each of the {len(texts):,} texts "
                f"that are not blank. Received: shape {rows.shape}"
            )
    elif path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path, columns=["text", "embedding"])
        keys, values = table["text"].to_pylist(), table["embedding"].to_numpy()
        found = dict(zip(keys, values))
        for text in texts:
            if text not in found:
                raise ValueError(
                    f"{path} must have every text of the data. "
                    f"It lacks {text[:80]!r}"
                )
        rows = np.stack([found[text] for text in texts])
    else:
        raise ValueError(
            "`teacher_embeddings` must be a .npy or .parquet file. "
            f"Received: {path}"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return _unit_length(rows.astype("float32"), str(path)), digest


def _unit_length(rows, source):
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError(
            f"{source} has embeddings that are zero or not finite. Use another"
        )
    return rows / lengths


def teacher_embeddings(
    teacher: FixedHeadTextEmbedder,
    texts: list[str],
    folder: pathlib.Path,
    sha256: str,
    prompt: str | None = None,
    sequence_length: int | None = None,
    worker: tuple[int, int] = (0, 1),
) -> np.ndarray:
    """Returns a teacher's embeddings, float32 `[N, E]`, of unit length.

    Reads those that are in `folder` for the same teacher, by its checksum
    `sha256`, and the same other arguments; interrupted work continues. `worker`
    is this process's number and how many processes share the folder.
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
    starts = range(0, len(texts), _TEXTS_PER_FILE)
    paths = [folder / f"{number:05}.npy" for number in range(len(starts))]
    parts = list(zip(paths, starts))
    # Each worker begins elsewhere, or all would compute the same file.
    number, workers = worker
    first = number * len(parts) // workers
    encode = TextEncoder(teacher, sequence_length, _BATCH_SIZE)
    with progress("Embedding with the teacher", len(texts)) as advance:
        for path, start in [*parts[first:], *parts[:first]]:
            some = texts[start : start + _TEXTS_PER_FILE]
            if path.exists():
                advance(len(some))
                continue
            rows = encode(some, prompt, on_batch=advance)
            rows = _unit_length(rows, "The teacher")
            with replaced(path) as partial, open(partial, "wb") as file:
                np.save(file, rows)
    # Memory maps, so that memory does not hold everything twice.
    return np.concatenate([np.load(path, mmap_mode="r") for path in paths])


def copy_embeddings(
    teacher: FixedHeadBackbone, student: FixedHeadBackbone
) -> None:
    """Starts tables with the principal components of the teacher's tokens."""

    def tables(backbone):
        return (
            backbone.token_embedding.embeddings,
            backbone.position_embedding.position_embeddings,
            backbone.segment_embedding.embeddings,
        )

    tokens = keras.ops.convert_to_numpy(tables(teacher)[0])
    components = principal_components(tokens, student.hidden_dim)
    for theirs, ours in zip(tables(teacher), tables(student)):
        rows = keras.ops.convert_to_numpy(theirs) @ components
        # A student for longer texts starts with the first positions again.
        ours.assign(np.resize(rows, ours.shape))
