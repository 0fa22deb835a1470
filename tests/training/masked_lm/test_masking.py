"""Masking beside tensorflow-text's own, and what the drawn numbers decide."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from training.masked_lm.batches import (
    DrawnItemSelector,
    DrawnMaskValuesChooser,
    Draws,
    words,
)

START, END = 2, 3
LONGEST = 61


@pytest.fixture(scope="module")
def rows():
    """Ids below 11 in rows of 0 to 61 tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.permutation(LONGEST + 1)
    return [rng.integers(0, 11, length).tolist() for length in lengths]


def ragged(rows, ragged_rank=1):
    return tf.ragged.constant(
        rows, tf.int32, ragged_rank=ragged_rank, row_splits_dtype=tf.int64
    )


def selection(rows, order, limit, rate, ragged_rank=1):
    selector = DrawnItemSelector(order, limit, rate, [START, END])
    selected = selector.get_selection_mask(ragged(rows, ragged_rank))
    assert selected.dtype == tf.bool
    return selected.to_list()


def budget(tokens, limit, rate):
    """As many of the tokens as are to be masked."""
    return min(int(np.ceil(np.float32(tokens) * np.float32(rate))), limit)


@pytest.mark.parametrize(
    ("limit", "rate"), [(4, 0.15), (60, 0.15), (100, 1.0), (5, 0.0)]
)
def test_selects_what_comes_first_in_the_drawn_order(rows, limit, rate):
    order = np.random.default_rng(1).random([len(rows), LONGEST + 3])
    expected = []
    for ids, drawn in zip(rows, order):
        may = np.flatnonzero(~np.isin(ids, [START, END]))
        first = may[np.argsort(drawn[may])][: budget(len(may), limit, rate)]
        expected.append(np.isin(np.arange(len(ids)), first).tolist())
    assert selection(rows, order, limit, rate) == expected
    # The numbers themselves do not matter.
    assert selection(rows, order**2 / 2, limit, rate) == expected
    # As many as tensorflow-text selects, and others in another order.
    theirs = tf_text.RandomItemSelector(limit, rate, [START, END])
    counts = theirs.get_selection_mask(ragged(rows), axis=1).to_list()
    assert list(map(sum, expected)) == list(map(sum, counts))
    if 0 < rate < 1:
        assert selection(rows, 1.0 - order, limit, rate) != expected


def test_whole_words_stay_within_the_tokens_to_mask():
    rng = np.random.default_rng(2)
    rows = [
        [[START]]
        + [[5] * length for length in rng.integers(1, 5, count)]
        + [[END]]
        for count in range(59)
    ]
    order = rng.random([len(rows), LONGEST])
    numbers = []
    for row, drawn, mask in zip(
        rows, order, selection(rows, order, 11, 0.3, ragged_rank=2)
    ):
        sizes = np.array([len(word) for word in row])
        sizes[[0, -1]] = 0
        most = budget(sizes.sum(), 11, 0.3)
        # From the first word on until one does not fit.
        expected = np.zeros(len(row), bool)
        for word in sorted(range(1, len(row) - 1), key=drawn.__getitem__):
            if sizes[expected].sum() + sizes[word] > most:
                break
            expected[word] = True
        assert mask == expected.tolist()
        numbers.append(sizes[expected].sum())
    assert max(numbers) == 11 and len(set(numbers)) > 5


def test_a_word_is_masked_as_a_whole():
    row = [[START], [5, 6], [7], [8, 9, 10], [END]]
    order = np.array([[0.0, 0.2, 0.9, 0.1, 0.0]])
    draws = Draws(order, np.zeros([1, 5]), np.zeros([1, 5]))
    masked, positions, ids = tf_text.mask_language_model(
        ragged([row], ragged_rank=2),
        DrawnItemSelector(order, 5, 0.8, [START, END]),
        DrawnMaskValuesChooser(draws, 11, 4, 1.0, 0.0),
    )
    assert masked.to_list() == [[START, 4, 4, 7, 4, 4, 4, END]]
    assert positions.to_list() == [[1, 2, 4, 5, 6]]
    assert ids.to_list() == [[5, 6, 8, 9, 10]]


def below(number):
    return np.nextafter(number, 0.0)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_chooses_at_the_borders_of_the_draws(dtype):
    # 3/4 become [MASK], 11, 1/8 any of 13 tokens, 1/8 stay 7.
    action = [
        [0.0, below(0.75), 0.75, 0.8, below(0.875)],
        [0.875, below(1.0), 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [0.75, 0.9, 0.0, 0.0, 0.0],
    ]
    replacement = [
        [0.5, 0.5, 0.0, 5 / 13 - 1e-9, below(1.0)],
        [0.5, 0.5, 0.5, 0.5, 0.5],
        [0.5, 0.5, 0.5, 0.5, 0.5],
        [5 / 13 + 1e-9, 0.5, 0.5, 0.5, 0.5],
    ]
    draws = Draws(None, np.array(action), np.array(replacement))
    chooser = DrawnMaskValuesChooser(draws, 13, 11, 0.75, 0.125)
    ids = tf.cast(ragged([[7, 7, 7, 7, 7], [7, 7], [], [7, 7]]), dtype)
    values = chooser.get_mask_values(ids)
    assert values.dtype == dtype
    assert values.to_list() == [[11, 11, 0, 4, 12], [7, 7], [], [5, 7]]


def test_words():
    is_suffix = tf.constant([False] * 5 + [False, True, False, True])
    rows = [[5, 6, 8, 7, 7, 6], [6, 8, 5], [6], [], [7], [8, 6]]
    grouped = words(ragged(rows), is_suffix)
    assert grouped.to_list() == [
        [[5, 6, 8], [7], [7, 6]],
        [[6, 8], [5]],  # begins in the middle of a word
        [[6]],
        [],
        [[7]],
        [[8, 6]],
    ]
    assert grouped.dtype == tf.int32


@pytest.mark.parametrize("rows", [[], [[]], [[], []], [[5]], [[START], [5]]])
@pytest.mark.parametrize("whole_word", [False, True])
def test_short_and_empty(rows, whole_word):
    token_ids = ragged(rows)
    if whole_word:
        token_ids = words(token_ids, tf.constant([False] * 11))
    draws = np.zeros([len(rows), 3])
    masked, positions, ids = tf_text.mask_language_model(
        token_ids,
        DrawnItemSelector(draws, 3, 0.15, [START, END]),
        DrawnMaskValuesChooser(Draws(draws, draws, draws), 11, 4, 0.8, 0.1),
    )
    expected = [[4 if id == 5 else id for id in row] for row in rows]
    assert masked.to_list() == expected
    assert positions.to_list() == [[0] if row == [5] else [] for row in rows]
    assert ids.to_list() == [[5] if row == [5] else [] for row in rows]
