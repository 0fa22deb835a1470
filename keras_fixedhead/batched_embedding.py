"""Embeds many texts with a model, in batches of similar length.

Shape letters: N texts, Q queries, B batch, T sequence length, D embedding
size.
"""

import concurrent.futures
import contextlib
import operator
import os
from collections.abc import Callable, Iterable, Sequence

import keras
import keras_hub
import numpy as np

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.beir import Collection
from keras_fixedhead.progress import progress

# JAX compiles each shape; shorter sequences share one.
_SHORTEST = 16
# Tokens of a batch: larger ones do not fit in the caches of CPUs.
_TOKENS = 2048
_CHARACTERS_PER_TOKEN = 4
# Batches at once: one thread does not use all processors.
_THREADS = min(4, os.cpu_count() or 1)


class TextEncoder:
    """Embeds many texts with a `FixedHeadTextEmbedder`, fast.

    On TensorFlow, one graph tokenizes and encodes batches of any shape, on
    their real tokens only. It is traced again when the model has changed. On
    JAX, rows and lengths are padded to powers of two, so that few shapes are
    compiled.

    `sequence_length` is the most tokens of a text, by default the
    preprocessor's limit; `batch_size` the most texts in a batch, by default
    about 2,048 tokens, which is fastest on CPUs.
    """

    def __init__(
        self,
        embedder: keras_hub.models.TextEmbedder,
        sequence_length: int | None = None,
        batch_size: int | None = None,
    ):
        if embedder.preprocessor is None:
            raise ValueError(
                "`embedder` needs a preprocessor for texts. "
                "Received: preprocessor=None"
            )
        self.embedder = embedder
        self.batch_size = positive_int("batch_size", batch_size, optional=True)
        self._sequence_length = sequence_length
        self._graph = self._traced = None

    def __call__(
        self,
        texts: Sequence[str],
        prompt: str | None = None,
        label: str | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Embeds N texts in their order, float32 `[N, D]`.

        Puts the prompt named `prompt` before each text, shows progress named
        `label`, and calls `on_batch` with the size of each finished batch.
        """
        prefix = self.embedder.preprocessor.prompt(prompt)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    "`texts` must be a list of strings. Received at index "
                    f"{i}: {text!r}"
                )
        room = self.embedder.preprocessor.room(self._sequence_length, 1)
        size = self.embedder.embedding_size
        rows = np.empty((len(texts), size), "float32")
        batches = self._batches([len(text) for text in texts], room)

        def embed(chosen):
            return self._embed([prefix + texts[i] for i in chosen])

        in_graph = keras.backend.backend() == "tensorflow"
        if in_graph and batches:
            self._trace()
        with contextlib.ExitStack() as stack:
            advance = stack.enter_context(progress(label, len(texts)))
            embedded: Iterable[np.ndarray] = map(embed, batches)
            if in_graph and len(batches) > 1:
                pool = concurrent.futures.ThreadPoolExecutor(_THREADS)
                stack.callback(pool.shutdown, cancel_futures=True)
                embedded = pool.map(embed, batches)
            for chosen, some in zip(batches, embedded):
                rows[chosen] = some
                advance(len(chosen))
                if on_batch is not None:
                    on_batch(len(chosen))
        return rows

    def embed_collection(
        self,
        collection: Collection,
        name: str,
        query_encoder: "TextEncoder | None" = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Embeds documents and queries, float32 `[N, D]` and `[Q, D]`.

        Puts the model's prompts `document` and `query` before them, if any.
        `query_encoder` embeds the queries, by default this one.
        """

        def embed(encode, texts, prompt, label):
            known = prompt in encode.embedder.preprocessor.prompts
            return encode(texts, prompt if known else None, f"{name}: {label}")

        asked = query_encoder or self
        return (
            embed(self, collection.documents, "document", "documents"),
            embed(asked, collection.queries, "query", "queries"),
        )

    def _batches(self, lengths, room):
        """Lists of indices, longest texts first: memory runs out at once."""
        order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
        batches, start = [], 0
        while start < len(order):
            count = self.batch_size
            if count is None:
                tokens = lengths[order[start]] // _CHARACTERS_PER_TOKEN
                count = max(1, _TOKENS // (min(tokens, room) + 2))
            batches.append(order[start : start + count])
            start += count
        return batches

    def _embed(self, texts):
        if self._graph is not None:
            return self._graph(texts).numpy()
        preprocessor = self.embedder.preprocessor
        tokenizer = preprocessor.tokenizer
        room = preprocessor.room(self._sequence_length, 1)
        rows = [
            [tokenizer.start_token_id, *ids[:room], tokenizer.end_token_id]
            for ids in tokenizer._tokenize_python(texts)
        ]
        count, length = len(rows), max(map(len, rows))
        if keras.backend.backend() == "jax":
            count = _power_of_two(count)
            length = min(max(_power_of_two(length), _SHORTEST), room + 2)
        inputs = preprocessor.pad_rows(rows, (count, length))
        # KerasHub's own would take the inputs for texts.
        found = keras.Model.predict_on_batch(self.embedder, inputs)
        return found[: len(texts)]

    def _trace(self):
        import tensorflow as tf

        embedder = self.embedder
        # What the graph holds as constants.
        state = [
            embedder.preprocessor.sequence_length,
            embedder.preprocessor.tokenizer,
            embedder.pooling_mode,
            embedder.normalize,
            embedder.embedding_dim,
            *embedder.variables,
        ]
        traced = self._traced or []
        if len(traced) == len(state) and all(map(operator.is_, traced, state)):
            return

        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )
        def embed(texts):
            return embedder.embed_packed(
                embedder.preprocessor.pad_to_longest(
                    texts, sequence_length=self._sequence_length
                )
            )

        graph = embed.get_concrete_function()
        self._graph = lambda texts: graph(tf.constant(texts))
        self._traced = state


def _power_of_two(number):
    return 1 << (number - 1).bit_length()
