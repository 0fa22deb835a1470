"""Examples of masked tokens and next sentences, out of tokenized documents.

tensorflow-text draws statefully what to mask and how, so a resumed run would
see other masks. Here the draws are tensors, which the caller seeds.

Shape letters: M examples of one replica, L sequence length, B sequences, T the
longest of them, K predictions at most.
"""

import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_fixedhead import FixedHeadTokenizer
from training.corpus.chunks import (
    ChunkBatches,
    chunk_bounds,
    sentence_pairs,
    texts,
)
from training.corpus.tokenized import Shard
from training.engine.configs import (
    check_at_least,
    check_fraction,
    check_positive,
)
from training.masked_lm.configs import MaskedLMConfig


class Draws(typing.NamedTuple):
    """Uniform draws from `[0, 1)` that decide the masks of B sequences."""

    order: tf.Tensor
    """`[B, T]`: the order in which items are masked."""
    action: tf.Tensor
    """`[B, K]`: `[MASK]`, a random token or the token itself."""
    replacement: tf.Tensor
    """`[B, K]`: which random token."""


class DrawnItemSelector(tf_text.RandomItemSelector):
    """Selects the items that come first in a drawn order, `[B, T]`.

    As many as `tensorflow_text.RandomItemSelector` does: a fraction of the
    selectable items, rounded up, within a limit. Items of several tokens, such
    as words, are selected while their tokens stay within that fraction.
    """

    def __init__(
        self,
        order: tf.Tensor,
        max_selections: int,
        selection_rate: float,
        unselectable_ids: list[int],
    ):
        super().__init__(max_selections, selection_rate, unselectable_ids)
        self._order = order

    def get_selection_mask(
        self, input_ids: tf.RaggedTensor, axis: int = 1
    ) -> tf.RaggedTensor:
        """Returns a ragged bool tensor `[B, (items)]`: the selected items.

        Ids are ragged, `[B, (items)]` or `[B, (items), (tokens)]`.
        """
        selectable = self.get_selectable(input_ids, axis)
        if input_ids.ragged_rank > 1:
            sizes = input_ids.with_values(input_ids.values.row_lengths())
        else:
            sizes = tf.ones_like(input_ids, dtype=tf.int64)
        sizes = tf.where(selectable, sizes, tf.zeros_like(sizes)).to_tensor()
        # Items of size 0 are not selectable.
        order = tf.argsort(self._order[:, : tf.shape(sizes)[1]], axis=1)
        sizes = tf.gather(sizes, order, batch_dims=1)
        budget = tf.math.ceil(
            tf.cast(tf.reduce_sum(sizes, axis=1), tf.float32)
            * self.selection_rate
        )
        budget = tf.minimum(
            tf.cast(budget, tf.int64), self.max_selections_per_batch
        )
        selected = (sizes > 0) & (tf.cumsum(sizes, axis=1) <= budget[:, None])
        # Back from the drawn order to the text's.
        selected = tf.gather(selected, tf.argsort(order, axis=1), batch_dims=1)
        return selectable.with_flat_values(
            tf.gather_nd(selected, _coordinates(selectable))
        )


class DrawnMaskValuesChooser(tf_text.MaskValuesChooser):
    """Chooses `[MASK]`, a random token or the token itself, as drawn.

    Takes `Draws`, then the arguments of `tensorflow_text.MaskValuesChooser`.
    """

    def __init__(self, draws: Draws, *args: float):
        super().__init__(*args)
        self._draws = draws

    def get_mask_values(
        self, masked_lm_ids: tf.RaggedTensor
    ) -> tf.RaggedTensor:
        """Returns what replaces the selected ids, ragged `[B, (selected)]`."""
        where = _coordinates(masked_lm_ids)
        action = tf.gather_nd(self._draws.action, where)
        replacement = tf.gather_nd(self._draws.replacement, where)
        ids = masked_lm_ids.flat_values
        random_ids = tf.cast(replacement * self.vocab_size, ids.dtype)
        masked = self._mask_token_rate
        values = tf.where(
            action < masked,
            tf.cast(self.mask_token, ids.dtype),
            tf.where(action < masked + self.random_token_rate, random_ids, ids),
        )
        return masked_lm_ids.with_flat_values(values)


def words(token_ids: tf.RaggedTensor, is_suffix: tf.Tensor) -> tf.RaggedTensor:
    """Groups ragged ids `[B, (tokens)]` to `[B, (words), (tokens)]`.

    `is_suffix`, bool `[V]`, tells which ids continue a word ("##ing").
    """
    starts = ~tf.gather(is_suffix, token_ids.flat_values)
    # A sequence may begin in the middle of a word.
    starts |= _coordinates(token_ids)[:, 1] == 0
    tokens = tf.RaggedTensor.from_row_starts(
        token_ids.flat_values, tf.where(starts)[:, 0], validate=False
    )
    words_per_row = tf.reduce_sum(
        token_ids.with_flat_values(tf.cast(starts, tf.int64)), axis=1
    )
    return tf.RaggedTensor.from_row_lengths(
        tokens, words_per_row, validate=False
    )


def _coordinates(ragged):
    """Returns the row and column of each value, int64 `[values, 2]`."""
    rows = ragged.value_rowids()
    columns = tf.range(tf.size(rows, tf.int64)) - tf.gather(
        ragged.row_starts(), rows
    )
    return tf.stack([rows, columns], axis=1)


class PretrainingBatches(ChunkBatches):
    """Batches of M examples, all of one static shape.

    int32 tensors `token_ids`, `segment_ids` and `padding_mask`, `[M, L]`;
    `mask_positions` and `mask_ids` (the original tokens), `[M, K]`;
    `next_sentence_labels`, `[M]`, 1 if the second segment is from elsewhere;
    and `mask_weights`, float32 `[M, K]`, 1 for each prediction to make.
    """

    def __init__(
        self,
        config: MaskedLMConfig,
        global_batch_size: int,
        tokenizer: FixedHeadTokenizer,
        seed: int,
    ):
        _check(config)
        super().__init__(
            global_batch_size,
            seed,
            # [CLS] and a [SEP] behind each segment.
            config.sequence_length - (3 if config.next_sentence else 2),
            config.shuffle_tokens,
            config.evaluation_examples,
        )
        self.config = config
        self.tokenizer = tokenizer
        self._is_suffix = np.array(
            [
                token.startswith(tokenizer.suffix_indicator)
                for token in tokenizer.get_vocabulary()
            ]
        )

    def _deal(self, shards: Sequence[Shard]) -> list[list[Shard]]:
        dealt = super()._deal(shards)
        if self.config.next_sentence and any(
            sum(len(shard.document_lengths) for shard in window) < 2
            for window in dealt
        ):
            raise ValueError(
                "`next_sentence` takes text from other documents and needs "
                "two at least in memory at a time. Prepare text with more "
                "documents or larger shards, or pass --no_next_sentence"
            )
        return dealt

    def _examples(self, window, chunks, indices):
        config = self.config
        # [M, 4 + L + 2 * K]
        draws = tf.map_fn(
            lambda index: tf.random.stateless_uniform(
                [4 + config.sequence_length + 2 * config.max_predictions],
                seed=self._example_seed(index),
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
        """Masks and pads ragged ids `[M, (tokens)]`.

        Ids `[M, (words), (tokens)]` are masked by whole words.
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


def _check(config):
    check_positive(mask_selection_rate=config.mask_selection_rate)
    check_fraction(
        mask_selection_rate=config.mask_selection_rate,
        mask_token_rate=config.mask_token_rate,
        random_token_rate=config.random_token_rate,
    )
    if config.mask_token_rate + config.random_token_rate > 1.0:
        raise ValueError(
            "`mask_token_rate` and `random_token_rate` must not add up to "
            f"more than 1. Received: {config.mask_token_rate} and "
            f"{config.random_token_rate}"
        )
    check_at_least(8, sequence_length=config.sequence_length)
    check_at_least(1, max_predictions=config.max_predictions)
