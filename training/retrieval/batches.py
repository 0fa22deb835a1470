"""Query-document pairs as batches: read, shuffled, augmented, tokenized.

Everything random is a function of the seed and of the update's number, so a
run can start at any update and see the batches it would have seen there, on
any number of replicas.

Shape letters: B pairs of a global batch, M pairs of one replica, H hard
negatives of a pair, T tokens, S sentences of a document.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedderPreprocessor
from training.corpus.pairs import Pair
from training.corpus.texts import tokenized
from training.engine.global_batch import (
    Share,
    evaluation_batches,
    scaled,
    shuffled,
)
from training.retrieval.configs import RetrievalConfig

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
        negatives: For each pair the documents that do not answer its query.
        negative_keys: For each pair the numbers of these documents, as in the
            second column of `keys`.
    """

    queries: list[str]
    documents: list[str]
    keys: np.ndarray
    negatives: list[tuple[str, ...]]
    negative_keys: list[tuple[int, ...]]

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "Pairs":
        """The columns of these rows."""
        queries = [pair.query for pair in pairs]
        documents = [pair.document for pair in pairs]
        answers = collections.defaultdict(set)
        for query, document in zip(queries, documents):
            answers[query].add(document)
        # What answers a query elsewhere in the data is no negative of it.
        negatives = [
            tuple(
                text
                for text in dict.fromkeys(pair.negatives)
                if text not in answers[pair.query]
            )
            for pair in pairs
        ]
        numbers = _numbers([*documents, *itertools.chain(*negatives)])
        query_numbers = _numbers(queries)
        keys = np.array(
            [
                (query_numbers[query], numbers[document])
                for query, document in zip(queries, documents)
            ],
            np.int64,
        ).reshape(-1, 2)
        return cls(
            queries,
            documents,
            keys,
            negatives,
            [tuple(numbers[text] for text in texts) for texts in negatives],
        )

    @property
    def have_negatives(self) -> bool:
        """Whether any pair has one."""
        return any(self.negatives)

    def __len__(self):
        return len(self.queries)

    def split(self, num_validation: int, seed: int) -> tuple["Pairs", "Pairs"]:
        """Sets pairs of random documents aside, to evaluate on in training.

        Returns:
            The pairs to train on, and the ones set aside. No document is in
            both, nor set aside and a negative to train on; pairs of the last
            document that are too many are in neither.

        Raises:
            ValueError: `num_validation` is not positive or leaves nothing.
        """
        rng = np.random.default_rng(seed)
        numbers, document = np.unique(self.keys[:, 1], return_inverse=True)
        place = rng.permutation(len(numbers))[document]
        order = np.argsort(place, stable=True)
        if 0 < num_validation < len(self):
            last = place[order[num_validation - 1]]
            rest = np.flatnonzero(place > last)
            if len(rest):
                validation = self._take(order[:num_validation])
                training = self._take(rest)._without(
                    set(validation.keys[:, 1].tolist())
                )
                return training, validation
        raise ValueError(
            "`validation_pairs` must be positive and leave some of the "
            f"{len(self)} pairs, of {len(numbers)} documents. "
            f"Received: {num_validation}"
        )

    def _without(self, documents):
        """These pairs, without negatives of these numbers."""
        kept = [
            [key not in documents for key in keys]
            for keys in self.negative_keys
        ]
        return dataclasses.replace(
            self,
            negatives=[
                tuple(itertools.compress(*row))
                for row in zip(self.negatives, kept)
            ],
            negative_keys=[
                tuple(itertools.compress(*row))
                for row in zip(self.negative_keys, kept)
            ],
        )

    def _take(self, indices):
        return Pairs(
            [self.queries[i] for i in indices],
            [self.documents[i] for i in indices],
            self.keys[indices],
            [self.negatives[i] for i in indices],
            [self.negative_keys[i] for i in indices],
        )


class PairBatches:
    """Batches of tokenized pairs for `tf.distribute`.

    Each batch is a dictionary: `query` and `document` hold what the
    preprocessors return, int32 `[M, T]`; `keys` is int64 `[M, 2]`, as in
    `Pairs`; with hard negatives, `negative` holds those of the first pair,
    then those of the second, int32 `[M H, T]`, and `negative_keys` int64
    `[M H]`, -1 where a pair has too few; `index`, in evaluation, int64 `[M]`,
    the pair's position, or -1 where a pair only fills up the last batch.

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
        if config.hard_negatives < 0:
            raise ValueError(
                "`hard_negatives` must be at least 0. "
                f"Received: {config.hard_negatives}"
            )
        self.config = config
        self.global_batch_size = global_batch_size
        self.preprocessor = preprocessor
        self.seed = seed
        self.packed = packed

    @tf.autograph.experimental.do_not_convert
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
        negatives = _ragged(pairs.negatives, tf.string)
        negative_keys = _ragged(pairs.negative_keys, tf.int64)
        # One more only where it is needed: the others stay what they were.
        num_draws = 6 if self.config.hard_negatives else 5

        def replica_batches(step, indices):
            # Drawn for the whole batch on every worker, then divided, so that
            # a pair's draws do not depend on the number of workers.
            draws = tf.random.stateless_uniform(
                [self.global_batch_size, num_draws], seed=[self.seed, step]
            )
            return (
                tf.reshape(indices[share.rows], shape),
                tf.reshape(draws[share.rows], [*shape, num_draws]),
            )

        def batch(indices, draws):
            query, split = _cut_query(
                tf.gather(queries, indices),
                tf.gather(sentences, indices),
                draws[:, :2],
                self.config.inverse_cloze,
            )
            split = _crop(split, draws[:, 2:5], self.config.crop_document)
            document = tf.strings.reduce_join(split, axis=1, separator=" ")
            texts = {"query": query, "document": document}
            features = {"keys": tf.gather(keys, indices)}
            if self.config.hard_negatives:
                texts["negative"], features["negative_keys"] = _draw_negatives(
                    tf.gather(negatives, indices),
                    tf.gather(negative_keys, indices),
                    draws[:, 5],
                    self.config.hard_negatives,
                )
            return {**self._tokenize(texts), **features}

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
        queries = tf.constant(pairs.queries)
        documents = tf.constant(pairs.documents)

        def batch(indices):
            return self._tokenize(
                {
                    "query": tf.gather(queries, indices),
                    "document": tf.gather(documents, indices),
                }
            )

        return evaluation_batches(
            batch, len(pairs), self.global_batch_size, context
        )

    def _tokenize(self, texts):
        kinds = {
            "query": ("query", self.config.query_length),
            "document": ("document", self.config.document_length),
            "negative": ("document", self.config.document_length),
        }
        return {
            name: tokenized(
                self.preprocessor,
                text,
                prompt=kinds[name][0] if self.preprocessor.prompts else None,
                sequence_length=kinds[name][1],
                fixed_size=not self.packed,
            )
            for name, text in texts.items()
        }


def _numbers(texts):
    """A number for each different text."""
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def _sentences(documents):
    """Documents as their sentences, a ragged string tensor `[pairs, S]`."""
    rows = [
        [part for part in _SENTENCE_END.split(document) if part.strip()]
        for document in documents
    ]
    return _ragged(rows, tf.string)


def _ragged(rows, dtype):
    """Rows of any lengths as a ragged tensor `[rows, None]`."""
    # `tf.ragged.constant` takes seconds for some ten thousand rows.
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(list(itertools.chain.from_iterable(rows)), dtype),
        tf.constant([len(row) for row in rows], tf.int64),
    )


def _draw_negatives(negatives, keys, draws, count):
    """Draws some of the negatives of each pair, each once at most.

    Args:
        negatives: Ragged string tensor `[M, negatives]`.
        keys: Ragged int64 tensor of the same shape.
        draws: Float tensor `[M]` in `[0, 1)`: where they begin.
        count: Integer, H.

    Returns:
        A string tensor `[M H]` and an int64 tensor `[M H]`, empty and -1 where
        a pair has fewer.
    """
    counts = negatives.row_lengths()[:, None]  # [M, 1]
    place = tf.range(count, dtype=tf.int64)[None, :]  # [1, H]
    first = scaled(draws, tf.maximum(counts[:, 0], 1))[:, None]
    column = (first + place) % tf.maximum(counts, 1)
    is_one = tf.reshape(place < counts, [-1])
    rows = tf.reshape(negatives.row_starts()[:, None] + column, [-1])
    # The last is for pairs that have none.
    texts = tf.concat([negatives.values, [""]], axis=0)
    numbers = tf.concat([keys.values, tf.constant([-1], tf.int64)], axis=0)
    last = tf.size(numbers, tf.int64) - 1
    chosen = tf.where(is_one, rows, last)
    return tf.gather(texts, chosen), tf.gather(numbers, chosen)


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
