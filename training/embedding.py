"""Embeds texts with a model, in batches of like lengths.

Shape letters: N texts, Q queries, D embedding size.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.beir import Collection
from training.progress import progress


class TextEncoder:
    """Embeds texts on their real tokens alone.

    Args:
        embedder: Computes the embeddings; its preprocessor reads texts.
        sequence_length: The most tokens of a text; `None` is the model's.
        batch_size: Texts embedded at once.

    Attributes:
        embedder: As given.
        size: D.

    Raises:
        ValueError: `batch_size` is not positive, or `sequence_length` leaves
            no token of a text.
    """

    def __init__(
        self,
        embedder: FixedHeadTextEmbedder,
        sequence_length: int | None = None,
        batch_size: int = 64,
    ):
        if batch_size < 1:
            raise ValueError(
                f"`batch_size` must be positive. Received: {batch_size}"
            )
        if sequence_length is not None and sequence_length <= 2:
            raise ValueError(
                "`sequence_length` must be over 2 (the special tokens). "
                f"Received: {sequence_length}"
            )
        self.embedder = embedder
        self.size = embedder.embedding_dim or embedder.backbone.hidden_dim
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._embed = tf.function(embedder.embed_packed, reduce_retracing=True)

    def __call__(
        self,
        texts: list[str],
        prompt: str | None = None,
        label: str | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Embeds texts.

        Args:
            texts: N strings.
            prompt: Name of the prompt put before each text, or `None`.
            label: What to call this where progress is shown; `None` shows
                none.
            on_batch: Called with the number of texts of each batch done.

        Returns:
            float32 array `[N, D]`, in the order of the texts.

        Raises:
            ValueError: There is no such prompt.
        """
        rows = np.empty((len(texts), self.size), "float32")
        # Of like lengths, a batch has little padding.
        order = np.argsort([len(text) for text in texts])
        with progress(label, len(texts)) as advance:
            for start in range(0, len(texts), self._batch_size):
                chosen = order[start : start + self._batch_size]
                inputs = self.embedder.preprocessor.pad_to_longest(
                    tf.constant([texts[row] for row in chosen]),
                    prompt=prompt,
                    sequence_length=self._sequence_length,
                )
                rows[chosen] = self._embed(inputs).numpy()
                advance(len(chosen))
                if on_batch is not None:
                    on_batch(len(chosen))
        return rows

    def embed_collection(
        self, collection: Collection, name: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Embeds what is searched, and the queries.

        The prompts `document` and `query` are put before them where the
        model has them.

        Args:
            collection: N documents and Q queries.
            name: What progress bars on the terminal say.

        Returns:
            float32 arrays `[N, D]` and `[Q, D]`.
        """
        prompts = self.embedder.preprocessor.prompts
        return tuple(
            self(
                texts,
                prompt=kind if kind in prompts else None,
                label=f"{name}: {label}",
            )
            for kind, label, texts in (
                ("document", "documents", collection.documents),
                ("query", "queries", collection.queries),
            )
        )
