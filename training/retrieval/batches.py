"""Query-document pairs as batches: read, shuffled, augmented, tokenized.

Everything random is a function of the seed and of the update's number, so a
run can start at any update, on any number of replicas, and see the same
batches.

Shape letters: M pairs of one replica, H hard negatives of a pair, T tokens,
S sentences of a document.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from training.corpus.pairs import Pair
from training.engine.configs import check_at_least, check_fraction
from training.engine.global_batch import (
    ExampleBatches,
    Share,
    scaled,
    shuffled,
    tokenized,
)
from training.retrieval.configs import RetrievalConfig

# Paragraphs, and sentences within them.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Queries, each with a document that answers it and some that do not.

    Equal texts have equal numbers: `keys`, int64 `[pairs, 2]`, are those of
    queries and documents, and `texts` the documents by number.
    """

    queries: list[str]
    texts: list[str]
    keys: np.ndarray
    negative_keys: list[tuple[int, ...]]

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "Pairs":
        """Numbers the texts and drops negatives that are answers elsewhere."""
        answers = collections.defaultdict(set)
        for pair in pairs:
            answers[pair.query].add(pair.document)
        queries = {text: i for i, text in enumerate(answers)}
        texts = [pair.document for pair in pairs]
        texts += itertools.chain.from_iterable(x.negatives for x in pairs)
        documents = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        keys = [(queries[x.query], documents[x.document]) for x in pairs]
        return cls(
            [pair.query for pair in pairs],
            list(documents),
            np.array(keys, np.int64).reshape(-1, 2),
            [
                tuple(
                    documents[text]
                    for text in dict.fromkeys(pair.negatives)
                    if text not in answers[pair.query]
                )
                for pair in pairs
            ],
        )

    @property
    def documents(self) -> list[str]:
        return [self.texts[key] for key in self.keys[:, 1]]

    def __len__(self):
        return len(self.queries)

    def split(self, num_validation: int, seed: int) -> tuple["Pairs", "Pairs"]:
        """Returns pairs to train on and pairs of random other documents.

        Pairs of the last document in excess of `num_validation` are in neither.
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
                return self._take(rest, set(validation.keys[:, 1])), validation
        raise ValueError(
            "`validation_pairs` must be positive and leave some of the "
            f"{len(self)} pairs, of {len(numbers)} documents. "
            f"Received: {num_validation}"
        )

    def _take(self, indices, excluded=frozenset()):
        return dataclasses.replace(
            self,
            queries=[self.queries[i] for i in indices],
            keys=self.keys[indices],
            negative_keys=[
                tuple(k for k in self.negative_keys[i] if k not in excluded)
                for i in indices
            ],
        )


@dataclasses.dataclass(kw_only=True)
class PairBatches(ExampleBatches):
    """Batches of tokenized pairs.

    `query` and `document` are int32 `[M, T]`; `keys`, in training, is int64
    `[M, 2]`. With hard negatives, `negative` is int32 `[M H, T]`, by pairs, and
    `negative_keys` int64 `[M H]`, -1 where a pair has too few.
    """

    config: RetrievalConfig

    def __post_init__(self) -> None:
        config = self.config
        check_fraction(
            crop_document=config.crop_document,
            inverse_cloze=config.inverse_cloze,
        )
        check_at_least(0, hard_negatives=config.hard_negatives)

    def reader(self, pairs: Pairs) -> Callable:
        texts = {
            "query": tf.constant(pairs.queries),
            "document": tf.constant(pairs.documents),
        }
        return lambda indices: self._tokenize(
            {name: tf.gather(x, indices) for name, x in texts.items()}
        )

    @tf.autograph.experimental.do_not_convert
    def training(
        self,
        pairs: Pairs,
        context: tf.distribute.InputContext,
        first_step: int,
    ) -> tf.data.Dataset:
        """Returns endless shuffled and augmented batches; see `shuffled`."""
        share = Share.of(context, self.global_batch_size)
        shape = [share.replicas, share.size]
        queries = tf.constant(pairs.queries)
        parts = map(_SENTENCE_END.split, pairs.documents)
        sentences = _ragged(
            [[part for part in row if part.strip()] for row in parts], tf.string
        )
        keys = tf.constant(pairs.keys)
        # The empty text stands where a pair has too few negatives.
        all_documents = tf.constant([*pairs.texts, ""])
        negative_keys = _ragged(pairs.negative_keys, tf.int64)
        # Runs without hard negatives keep the draws they always had.
        config = self.config
        num_draws = 6 if config.hard_negatives else 5

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
                config.inverse_cloze,
            )
            split = _crop(split, draws[:, 2:5], config.crop_document)
            document = tf.strings.reduce_join(split, axis=1, separator=" ")
            texts = {"query": query, "document": document}
            features = {"keys": tf.gather(keys, indices)}
            if count := config.hard_negatives:
                own = tf.gather(negative_keys, indices)
                numbers = _draw_negatives(own, draws[:, 5], count)
                # -1 becomes the number of the empty text.
                texts["negative"] = tf.gather(
                    all_documents, numbers % (len(pairs.texts) + 1)
                )
                features["negative_keys"] = numbers
            return {**self._tokenize(texts), **features}

        return (
            shuffled(len(pairs), self.global_batch_size, self.seed, first_step)
            .map(replica_batches)
            .unbatch()
            .map(batch, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _tokenize(self, texts):
        features = {}
        for name, text in texts.items():
            kind = "query" if name == "query" else "document"
            features[name] = tokenized(
                self.preprocessor,
                text,
                prompt=kind if self.preprocessor.prompts else None,
                sequence_length=getattr(self.config, f"{kind}_length"),
                fixed_size=not self.packed,
            )
        return features


def _ragged(rows, dtype):
    # `tf.ragged.constant` takes seconds for some ten thousand rows.
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(list(itertools.chain.from_iterable(rows)), dtype),
        tf.constant([len(row) for row in rows], tf.int64),
    )


def _draw_negatives(keys, draws, count):
    """Draws `count` of each pair's negatives, each at most once.

    Takes ragged `[M, negatives]` and floats `[M]`, where to begin. Returns
    `[M H]`, -1 where a pair has fewer.
    """
    counts = keys.row_lengths()[:, None]  # [M, 1]
    place = tf.range(count, dtype=tf.int64)[None, :]  # [1, H]
    first = scaled(draws, tf.maximum(counts[:, 0], 1))[:, None]
    column = (first + place) % tf.maximum(counts, 1)
    rows = keys.row_starts()[:, None] + column
    # The last entry is for pairs that have too few.
    numbers = tf.concat([keys.values, tf.constant([-1], tf.int64)], axis=0)
    last = tf.size(numbers, tf.int64) - 1
    chosen = tf.where(place < counts, rows, last)
    return tf.gather(numbers, tf.reshape(chosen, [-1]))


def _cut_query(queries, sentences, draws, probability):
    """Replaces some queries, `[M]`, by a sentence cut out of their document.

    The inverse cloze task (Lee et al. 2019, section 4, which leaves one
    sentence in ten in). Sentences are ragged `[M, S]`, draws `[M, 2]`.
    """
    counts, starts = sentences.row_lengths(), sentences.row_starts()
    cut = (draws[:, 0] < probability) & (counts > 1)
    chosen = starts + scaled(draws[:, 1], counts)
    queries = tf.where(cut, tf.gather(sentences.values, chosen), queries)
    after = tf.where(cut, chosen + 1, chosen)
    kept = [
        tf.ragged.range(starts, chosen),
        tf.ragged.range(after, starts + counts),
    ]
    return queries, tf.gather(sentences.values, tf.concat(kept, axis=1))


def _crop(sentences, draws, probability):
    """Shrinks some documents, ragged `[M, S]`, to a random span of sentences.

    Draws, floats `[M, 3]`, decide whether, how long and where.
    """
    counts = sentences.row_lengths()
    lengths = tf.where(
        draws[:, 0] < probability, 1 + scaled(draws[:, 1], counts), counts
    )
    starts = scaled(draws[:, 2], counts - lengths + 1) + sentences.row_starts()
    return tf.gather(
        sentences.values, tf.ragged.range(starts, starts + lengths)
    )
