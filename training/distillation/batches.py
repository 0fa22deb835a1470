"""Texts with a teacher's embeddings, and batches of them.

Shape letters: M texts of this replica, N all texts, T length, E embedding size
of the teacher.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from training.engine.global_batch import ExampleBatches, tokenized


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
