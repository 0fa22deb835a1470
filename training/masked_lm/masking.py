"""Masking for language models: tensorflow-text's, with draws handed in.

tensorflow-text draws statefully what to mask and what to put there, so a
resumed run would see other masks. Here the draws are tensors, made by whoever
knows from which seed.

Shape letters: B sequences, T the longest sequence, K predictions at most.
"""

import typing

import tensorflow as tf
import tensorflow_text as tf_text


class Draws(typing.NamedTuple):
    """What decides the masks of B sequences, uniform in `[0, 1)`.

    Attributes:
        order: Float tensor `[B, T]`. Items are masked in this order.
        action: Float tensor `[B, K]`. Decides between `[MASK]`, a random
            token and the token itself.
        replacement: Float tensor `[B, K]`. Decides which random token.
    """

    order: tf.Tensor
    action: tf.Tensor
    replacement: tf.Tensor


class DrawnItemSelector(tf_text.RandomItemSelector):
    """Selects the items that come first in a drawn order.

    As many as `tensorflow_text.RandomItemSelector` does: the rate's part of
    the items that may be selected, rounded up, and at most the limit. Where
    items are words of several tokens, words are selected while their tokens
    stay within that part of the tokens.

    Args:
        order: Float tensor `[B, T]`, T at least the number of items.
        max_selections: Integer, the most tokens of a sequence.
        selection_rate: Float, the part of the tokens.
        unselectable_ids: List of ids that are never selected.
    """

    def __init__(self, order, max_selections, selection_rate, unselectable_ids):
        super().__init__(max_selections, selection_rate, unselectable_ids)
        self._order = order

    def get_selection_mask(self, input_ids, axis=1):
        """Returns which items are selected.

        Args:
            input_ids: Ragged int tensor `[B, (items)]`, or with `axis` 1
                `[B, (items), (tokens)]` for items of several tokens.
            axis: 1, the axis of the items.

        Returns:
            Ragged bool tensor `[B, (items)]`.
        """
        selectable = self.get_selectable(input_ids, axis)
        if input_ids.ragged_rank > 1:
            sizes = input_ids.with_values(input_ids.values.row_lengths())
        else:
            sizes = tf.ones_like(input_ids, dtype=tf.int64)
        sizes = tf.where(selectable, sizes, tf.zeros_like(sizes)).to_tensor()
        # Items of size 0 may not be selected, wherever they come.
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
        # Back from the drawn order to that of the text.
        selected = tf.gather(selected, tf.argsort(order, axis=1), batch_dims=1)
        return selectable.with_flat_values(
            tf.gather_nd(selected, _coordinates(selectable))
        )


class DrawnMaskValuesChooser(tf_text.MaskValuesChooser):
    """Puts `[MASK]`, a random token or the token itself, as was drawn.

    Args:
        draws: `Draws`.
        vocabulary_size: Integer.
        mask_token_id: Integer.
        mask_token_rate: Float, the part that becomes `[MASK]`.
        random_token_rate: Float, the part that becomes any token.
    """

    def __init__(
        self,
        draws,
        vocabulary_size,
        mask_token_id,
        mask_token_rate,
        random_token_rate,
    ):
        super().__init__(
            vocabulary_size, mask_token_id, mask_token_rate, random_token_rate
        )
        self._draws = draws

    def get_mask_values(self, masked_lm_ids):
        """Returns what stands in the place of the selected tokens.

        Args:
            masked_lm_ids: Ragged int tensor `[B, (selected)]`.

        Returns:
            A ragged tensor of the same shape and dtype.
        """
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


def words(token_ids, is_suffix):
    """Groups the tokens of each sequence by the words they are parts of.

    Args:
        token_ids: Ragged int tensor `[B, (tokens)]`.
        is_suffix: Bool tensor `[V]`, which ids continue a word ("##ing").

    Returns:
        Ragged int tensor `[B, (words), (tokens)]`.
    """
    starts = token_ids.with_flat_values(
        ~tf.gather(is_suffix, token_ids.flat_values)
    )
    # A sequence may begin in the middle of a word.
    first = _coordinates(token_ids)[:, 1] == 0
    starts = starts.with_flat_values(starts.flat_values | first)
    word_starts = tf.where(starts.flat_values)[:, 0]
    tokens = tf.RaggedTensor.from_row_starts(
        token_ids.flat_values, word_starts, validate=False
    )
    words_per_row = tf.reduce_sum(tf.cast(starts, tf.int64), axis=1)
    return tf.RaggedTensor.from_row_lengths(
        tokens, words_per_row, validate=False
    )


def _coordinates(ragged):
    """Row and column of each value, int64 `[values, 2]`."""
    rows = ragged.value_rowids()
    columns = tf.range(tf.size(rows, tf.int64)) - tf.gather(
        ragged.row_starts(), rows
    )
    return tf.stack([rows, columns], axis=1)
