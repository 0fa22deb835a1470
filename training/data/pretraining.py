"""Examples of masked tokens and next sentences, out of tokenized documents.

Everything random is a function of the seed and of the example's number, so a
run can start at any update and see the batches it would have seen there, on
any number of replicas.

An epoch goes through the corpus once; each chunk of a document is one example.
Chunks are shuffled over what fits into memory: the shards are dealt out into
windows, and an epoch takes the windows, and the chunks in each, in a new order.

Shape letters: B examples of a global batch, M examples of one replica, L
sequence length, K predictions at most.
"""

import math
import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_fixedhead import FixedHeadTokenizer
from training.configs import MaskedLMConfig
from training.data.chunks import (
    chunk_bounds,
    load_window,
    num_chunks,
    sentence_pairs,
    texts,
)
from training.data.corpus import Shard
from training.data.global_batch import Share, evaluation_numbers
from training.data.masking import (
    DrawnItemSelector,
    DrawnMaskValuesChooser,
    Draws,
    words,
)

# What the streams of random numbers are for, so that none is used twice.
_WINDOW_ORDER, _CHUNK_ORDER, _EXAMPLE = range(3)


class PretrainingBatches:
    """Batches of examples for `tf.distribute`, all of one static shape.

    Each batch is a dictionary of int32 tensors: `token_ids`, `segment_ids`
    and `padding_mask` `[M, L]`; `mask_positions` and `mask_ids` (what stood
    there) `[M, K]`; `mask_weights`, float32 `[M, K]`, 1 where there is a
    prediction to make; `next_sentence_labels` `[M]`, 1 where the second
    segment is from elsewhere.

    Args:
        config: Lengths and rates.
        global_batch_size: Integer, B.
        tokenizer: The `FixedHeadTokenizer` that made the documents.
        seed: Integer, decides order, pairs and masks.

    Raises:
        ValueError: A value of `config` is out of its range.
    """

    def __init__(
        self,
        config: MaskedLMConfig,
        global_batch_size: int,
        tokenizer: FixedHeadTokenizer,
        seed: int,
    ):
        _check(config)
        self.config = config
        self.global_batch_size = global_batch_size
        self.tokenizer = tokenizer
        self.seed = seed
        # [CLS] and a [SEP] behind each segment.
        self._chunk_length = config.sequence_length - (
            3 if config.next_sentence else 2
        )
        self._is_suffix = np.array(
            [
                token.startswith(tokenizer.suffix_indicator)
                for token in tokenizer.get_vocabulary()
            ]
        )

    def training(
        self,
        shards: Sequence[Shard],
        context: tf.distribute.InputContext,
        first_step: int,
    ) -> tf.data.Dataset:
        """Endless batches, from `first_step` on.

        What is left over of a window after its last global batch is left out
        of this epoch, another part each time.

        Raises:
            ValueError: A window of shards does not give one global batch, or
                has no second document to take other text from.
        """
        share = Share.of(context, self.global_batch_size)
        windows = self._plan(shards)
        batches = [
            chunks // self.global_batch_size for chunks in windows.chunks
        ]
        if not min(batches):
            raise ValueError(
                "`global_batch_size` must be at most the number of examples "
                f"in memory at a time, {min(windows.chunks)} (see "
                f"shuffle_tokens). Received: {self.global_batch_size}"
            )
        per_epoch = sum(batches)
        batches = tf.constant(batches, tf.int64)

        def epoch_windows(epoch):
            """Elements: window, its first step, its batches made before."""
            order = tf.random.experimental.stateless_shuffle(
                tf.range(len(windows.paths), dtype=tf.int64),
                seed=self._seed(_WINDOW_ORDER, epoch),
            )
            counts = tf.gather(batches, order)
            starts = epoch * per_epoch + tf.cumsum(counts, exclusive=True)
            skips = tf.clip_by_value(first_step - starts, 0, counts)
            return tf.data.Dataset.from_tensor_slices(
                (order, starts, skips)
            ).filter(lambda number, start, skip: skip < batches[number])

        def window_batches(window, number, start, skip):
            order = tf.random.experimental.stateless_shuffle(
                tf.range(window.chunk_starts[-1]),
                # No two windows of a run begin at one step.
                seed=self._seed(_CHUNK_ORDER, start),
            )

            def batch(number):
                # Batches of a worker's replicas come in turn.
                step, replica = (
                    number // share.replicas,
                    number % share.replicas,
                )
                rows = (
                    share.first_row
                    + replica * share.size
                    + tf.range(share.size, dtype=tf.int64)
                )
                chunks = order[step * self.global_batch_size :]
                return self._examples(
                    window,
                    tf.gather(chunks, rows),
                    (start + step) * self.global_batch_size + rows,
                )

            return tf.data.Dataset.range(
                skip * share.replicas, batches[number] * share.replicas
            ).map(batch, num_parallel_calls=tf.data.AUTOTUNE)

        return (
            tf.data.Dataset.range(first_step // per_epoch, tf.int64.max)
            .flat_map(epoch_windows)
            .map(
                lambda number, *steps: (
                    load_window(windows.paths[number], self._chunk_length),
                    number,
                    *steps,
                )
            )
            .prefetch(1)
            .flat_map(window_batches)
            .prefetch(tf.data.AUTOTUNE)
        )

    def evaluation(
        self, shards: Sequence[Shard], context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """The same examples each time, in as many batches on each replica.

        Batches hold `index`, too, int64 `[M]`: the example's number, or -1
        where one only fills up the last batch.

        Raises:
            ValueError: There is no second document to take text from.
        """
        windows = self._plan(shards)
        mine = evaluation_numbers(
            min(self.config.evaluation_examples, windows.chunks[0]),
            self.global_batch_size,
            context,
        )

        def window_batches(window):
            order = tf.random.experimental.stateless_shuffle(
                tf.range(window.chunk_starts[-1]),
                seed=self._seed(_CHUNK_ORDER, 0),
            )

            def batch(indices):
                index = tf.maximum(indices, 0)
                features = self._examples(
                    window, tf.gather(order, index), index
                )
                return features | {"index": indices}

            return tf.data.Dataset.from_tensor_slices(mine).map(
                batch, num_parallel_calls=tf.data.AUTOTUNE
            )

        return (
            tf.data.Dataset.range(1)
            .map(
                lambda number: load_window(
                    windows.paths[number], self._chunk_length
                )
            )
            .flat_map(window_batches)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _seed(self, stream, number):
        """Seed of one of the streams, int32 or int64 `[2]`."""
        return tf.random.fold_in(
            tf.constant([self.seed, stream], tf.int64), number
        )

    def _plan(self, shards):
        """Deals the shards out into windows that fit into memory."""
        tokens = sum(int(shard.document_lengths.sum()) for shard in shards)
        count = min(
            max(math.ceil(tokens / self.config.shuffle_tokens), 1), len(shards)
        )
        dealt = [shards[number::count] for number in range(count)]
        if self.config.next_sentence and any(
            sum(len(shard.document_lengths) for shard in window) < 2
            for window in dealt
        ):
            raise ValueError(
                "`next_sentence` takes text from other documents, of which "
                "there must be two at least in memory at a time. Prepare "
                "text with more documents or larger shards, or pass "
                "--no_next_sentence"
            )
        return _Windows(
            tf.ragged.constant(
                [[str(shard.path) for shard in window] for window in dealt]
            ),
            [
                sum(
                    int(
                        num_chunks(
                            shard.document_lengths, self._chunk_length
                        ).sum()
                    )
                    for shard in window
                )
                for window in dealt
            ],
        )

    def _examples(self, window, chunks, indices):
        """Examples of some chunks.

        Args:
            window: `Window`.
            chunks: int64 tensor `[M]`.
            indices: int64 tensor `[M]`, the examples' numbers in the run.
        """
        config = self.config
        # [M, 4 + L + 2 * K]
        draws = tf.map_fn(
            lambda index: tf.random.stateless_uniform(
                [4 + config.sequence_length + 2 * config.max_predictions],
                seed=self._seed(_EXAMPLE, index),
                dtype=tf.float64,
            ),
            indices,
            fn_output_signature=tf.float64,
        )
        pair, order, action, replacement = tf.split(
            draws,
            [
                4,
                config.sequence_length,
                config.max_predictions,
                config.max_predictions,
            ],
            axis=1,
        )
        if config.next_sentence:
            *segments, elsewhere = sentence_pairs(window, chunks, pair)
        else:
            start, end, _ = chunk_bounds(window, chunks)
            segments = [texts(window, start, end)]
            elsewhere = tf.zeros_like(chunks, dtype=tf.bool)
        if config.whole_word:
            segments = [words(ids, self._is_suffix) for ids in segments]
        token_ids, segment_ids = tf_text.combine_segments(
            segments,
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
        )
        segment_ids = segment_ids.merge_dims(1, -1)
        length = config.sequence_length
        return {
            **self._mask(token_ids, Draws(order, action, replacement)),
            "segment_ids": segment_ids.to_tensor(shape=[None, length]),
            "padding_mask": tf.sequence_mask(
                segment_ids.row_lengths(), length, tf.int32
            ),
            "next_sentence_labels": tf.cast(elsewhere, tf.int32),
        }

    def _mask(self, token_ids, draws):
        """Masks ragged sequences and pads them.

        Args:
            token_ids: Ragged int tensor `[M, (tokens)]`, or
                `[M, (words), (tokens)]` to mask whole words.
            draws: `Draws`.
        """
        config, tokenizer = self.config, self.tokenizer
        masked, positions, ids = tf_text.mask_language_model(
            token_ids,
            DrawnItemSelector(
                draws.order,
                config.max_predictions,
                config.mask_selection_rate,
                [tokenizer.start_token_id, tokenizer.end_token_id],
            ),
            DrawnMaskValuesChooser(
                draws,
                tokenizer.vocabulary_size(),
                tokenizer.mask_token_id,
                config.mask_token_rate,
                config.random_token_rate,
            ),
        )
        predictions = [None, config.max_predictions]
        return {
            "token_ids": masked.to_tensor(
                tokenizer.pad_token_id, shape=[None, config.sequence_length]
            ),
            "mask_positions": tf.cast(
                positions.to_tensor(shape=predictions), tf.int32
            ),
            "mask_ids": ids.to_tensor(shape=predictions),
            "mask_weights": tf.sequence_mask(
                ids.row_lengths(), config.max_predictions, tf.float32
            ),
        }


class _Windows(typing.NamedTuple):
    """Which shards are in memory together.

    Attributes:
        paths: Ragged string tensor `[windows, (shards)]`.
        chunks: List of the windows' numbers of chunks.
    """

    paths: tf.RaggedTensor
    chunks: list[int]


def _check(config):
    if not 0.0 < config.mask_selection_rate <= 1.0:
        raise ValueError(
            "`mask_selection_rate` must be over 0 and at most 1. "
            f"Received: {config.mask_selection_rate}"
        )
    for name in ("mask_token_rate", "random_token_rate"):
        if not 0.0 <= getattr(config, name) <= 1.0:
            raise ValueError(
                f"`{name}` must be between 0 and 1. "
                f"Received: {getattr(config, name)}"
            )
    if config.mask_token_rate + config.random_token_rate > 1.0:
        raise ValueError(
            "`mask_token_rate` and `random_token_rate` must not add up to "
            f"more than 1. Received: {config.mask_token_rate} and "
            f"{config.random_token_rate}"
        )
    for name, least in {
        "sequence_length": 8,
        "max_predictions": 1,
        "shuffle_tokens": 1,
        "evaluation_examples": 1,
    }.items():
        if getattr(config, name) < least:
            raise ValueError(
                f"`{name}` must be at least {least}. "
                f"Received: {getattr(config, name)}"
            )
