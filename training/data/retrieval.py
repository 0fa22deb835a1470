"""Query-document pairs as batches: read, shuffled, augmented, tokenized.

Everything random is a function of the seed and of the update's number, so a
run can start at any update and see the batches it would have seen there, on
any number of replicas.

Shape letters: B pairs of a global batch, M pairs of one replica, T tokens,
S sentences of a document.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedderPreprocessor
from training.configs import RetrievalConfig
from training.data.global_batch import (
    Share,
    evaluation_batches,
    scaled,
    shuffled,
)
from training.data.pairs import Pair
from training.data.texts import tokenized

# Paragraphs, and sentences within them.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Queries with the document that answers each.

    Attributes:
        queries: List of strings.
        documents: List of strings, as many.
        keys: int64 array `[pairs, 2]`. Equal numbers in the first column are
            equal queries, in the second equal documents.
    """

    queries: list[str]
    documents: list[str]
    keys: np.ndarray

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "Pairs":
        """The columns of these rows."""
        queries = [pair.query for pair in pairs]
        documents = [pair.document for pair in pairs]
        keys = np.stack([_numbered(queries), _numbered(documents)], axis=1)
        return cls(queries, documents, keys)

    def __len__(self):
        return len(self.queries)

    def split(self, num_validation: int, seed: int) -> tuple["Pairs", "Pairs"]:
        """Sets random pairs aside for evaluation during training.

        Returns:
            The pairs to train on, and the ones set aside.

        Raises:
            ValueError: `num_validation` is not positive or leaves nothing.
        """
        if not 0 < num_validation < len(self):
            raise ValueError(
                "`validation_pairs` must be positive and smaller than the "
                f"{len(self)} pairs there are. Received: {num_validation}"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        return (
            self._take(np.sort(order[num_validation:])),
            self._take(order[:num_validation]),
        )

    def _take(self, indices):
        return Pairs(
            [self.queries[i] for i in indices],
            [self.documents[i] for i in indices],
            self.keys[indices],
        )


class PairBatches:
    """Batches of tokenized pairs for `tf.distribute`.

    Each batch is a dictionary: `query` and `document` hold what the
    preprocessors return, int32 `[M, T]`; `keys` is int64 `[M, 2]`, as in
    `Pairs`; `index`, in evaluation, int64 `[M]`, the pair's position, or -1
    where a pair only fills up the last batch.

    Args:
        config: Lengths and augmentation.
        global_batch_size: Integer, B.
        preprocessor: A `FixedHeadTextEmbedderPreprocessor`; where it has
            prompts, they are named `query` and `document`.
        seed: Integer, decides order and augmentation.
        packed: Bool, whether batches are as long as their longest text only.
    """

    def __init__(
        self,
        config: RetrievalConfig,
        global_batch_size: int,
        preprocessor: FixedHeadTextEmbedderPreprocessor,
        seed: int,
        packed: bool = True,
    ):
        for name in ("crop_document", "inverse_cloze"):
            probability = getattr(config, name)
            if not 0.0 <= probability <= 1.0:
                raise ValueError(
                    f"`{name}` must be a probability. Received: {probability}"
                )
        self.config = config
        self.global_batch_size = global_batch_size
        self.preprocessor = preprocessor
        self.seed = seed
        self.packed = packed

    def training(
        self,
        pairs: Pairs,
        context: tf.distribute.InputContext,
        first_step: int,
    ) -> tf.data.Dataset:
        """Endless shuffled and augmented batches, from `first_step` on.

        Each epoch leaves out what does not fill a global batch, another part
        each time.

        Raises:
            ValueError: There are fewer pairs than one global batch takes, or
                it does not divide over the replicas.
        """
        share = Share.of(context, self.global_batch_size)
        shape = [share.replicas, share.size]
        queries = tf.constant(pairs.queries)
        sentences = _sentences(pairs.documents)
        keys = tf.constant(pairs.keys)

        def replica_batches(step, indices):
            # Drawn for the whole batch on every worker, then divided, so that
            # a pair's draws do not depend on the number of workers.
            draws = tf.random.stateless_uniform(
                [self.global_batch_size, 5], seed=[self.seed, step]
            )
            last_row = share.first_row + share.replicas * share.size
            mine = slice(share.first_row, last_row)
            return (
                tf.reshape(indices[mine], shape),
                tf.reshape(draws[mine], [*shape, 5]),
            )

        def batch(indices, draws):
            query, split = _cut_query(
                tf.gather(queries, indices),
                tf.gather(sentences, indices),
                draws[:, :2],
                self.config.inverse_cloze,
            )
            split = _crop(split, draws[:, 2:], self.config.crop_document)
            document = tf.strings.reduce_join(split, axis=1, separator=" ")
            return {
                **self._tokenize(query, document),
                "keys": tf.gather(keys, indices),
            }

        return (
            shuffled(len(pairs), self.global_batch_size, self.seed, first_step)
            .map(replica_batches)
            .unbatch()
            .map(batch, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )

    def evaluation(
        self, pairs: Pairs, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Every pair once, in order, in as many batches on each replica."""
        mine = evaluation_batches(len(pairs), self.global_batch_size, context)
        queries = tf.constant(pairs.queries)
        documents = tf.constant(pairs.documents)

        def batch(indices):
            rows = tf.maximum(indices, 0)
            return {
                **self._tokenize(
                    tf.gather(queries, rows), tf.gather(documents, rows)
                ),
                "index": indices,
            }

        return (
            tf.data.Dataset.from_tensor_slices(mine)
            .map(batch, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _tokenize(self, query, document):
        return {
            kind: tokenized(
                self.preprocessor,
                text,
                prompt=kind if self.preprocessor.prompts else None,
                sequence_length=length,
                fixed_size=not self.packed,
            )
            for kind, text, length in (
                ("query", query, self.config.query_length),
                ("document", document, self.config.document_length),
            )
        }


def _numbered(texts):
    """Equal texts as equal numbers, int64 `[len(texts)]`."""
    numbers = {}
    return np.array(
        [numbers.setdefault(text, len(numbers)) for text in texts], np.int64
    )


def _sentences(documents):
    """Documents as their sentences, a ragged string tensor `[pairs, S]`."""
    rows = [
        [part for part in _SENTENCE_END.split(document) if part.strip()]
        for document in documents
    ]
    return tf.RaggedTensor.from_row_lengths(
        list(itertools.chain.from_iterable(rows)),
        [len(row) for row in rows],
    )


def _cut_query(queries, sentences, draws, probability):
    """Inverse cloze task: some queries become a sentence cut out of the
    document (Lee et al. 2019, section 4, which leaves one in ten in).

    Args:
        queries: String tensor `[M]`.
        sentences: Ragged string tensor `[M, S]`; documents of one sentence
            are left alone.
        draws: Float tensor `[M, 2]` in `[0, 1)`.
        probability: Float.

    Returns:
        Queries and sentences of the same shapes.
    """
    counts = sentences.row_lengths()
    cut = (draws[:, 0] < probability) & (counts > 1)
    chosen = scaled(draws[:, 1], counts)
    flat = sentences.row_starts() + chosen
    queries = tf.where(cut, tf.gather(sentences.values, flat), queries)
    # A span that is empty where nothing is cut.
    ends = tf.where(cut, chosen + 1, chosen)
    return queries, _keep(sentences, ~_in_span(sentences, chosen, ends))


def _crop(sentences, draws, probability):
    """Shrinks some documents to a random span of consecutive sentences.

    Args:
        sentences: Ragged string tensor `[M, S]`, no row empty.
        draws: Float tensor `[M, 3]` in `[0, 1)`: whether, how long, where.
        probability: Float.

    Returns:
        Ragged string tensor of the same outer shape, no row empty.
    """
    counts = sentences.row_lengths()
    lengths = tf.where(
        draws[:, 0] < probability, 1 + scaled(draws[:, 1], counts), counts
    )
    starts = scaled(draws[:, 2], counts - lengths + 1)
    return _keep(sentences, _in_span(sentences, starts, starts + lengths))


def _in_span(ragged, starts, ends):
    """Which values, rows put end to end, lie in `[start, end)` of their row."""
    # Ragged broadcasting does the same, in a graph that takes seconds to
    # build.
    rows = ragged.value_rowids()
    position = tf.range(tf.size(rows, rows.dtype)) - tf.gather(
        ragged.row_starts(), rows
    )
    return (position >= tf.gather(starts, rows)) & (
        position < tf.gather(ends, rows)
    )


def _keep(ragged, kept):
    """The rows without the values that are not kept."""
    return tf.RaggedTensor.from_value_rowids(
        tf.boolean_mask(ragged.values, kept),
        tf.boolean_mask(ragged.value_rowids(), kept),
        nrows=ragged.nrows(),
        validate=False,
    )
