"""Masking for language models: tensorflow-text's, with draws passed in.

tensorflow-text draws statefully what to mask and how, so a resumed run would
see other masks. Here the draws are tensors, which the caller seeds.

Shape letters: B sequences, T the longest sequence, K predictions at most.
"""

import typing

import tensorflow as tf
import tensorflow_text as tf_text


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

    def get_selection_mask(self, input_ids, axis=1):
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

    def __init__(self, draws: Draws, *args):
        super().__init__(*args)
        self._draws = draws

    def get_mask_values(self, masked_lm_ids):
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
