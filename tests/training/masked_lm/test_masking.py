"""What the drawn numbers decide: which tokens are masked, and how."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from training.masked_lm.configs import MaskedLMConfig
from training.masked_lm.task import PretrainingBatches

PAD, START, END, MASK = map(
    SPECIAL_TOKENS.index, ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
)
FIRST, LENGTH, ROWS = len(SPECIAL_TOKENS), 61, 97
# Every other one continues a word.
WORDS = [("##" * (i % 2)) + f"{i}" for i in range(8)]
CONFIG = MaskedLMConfig(sequence_length=LENGTH, max_predictions=11)


def masked(token_ids, draws, **changes):
    """Its parts as NumPy arrays, of lists of ids and of three arrays."""
    batches = PretrainingBatches(
        dataclasses.replace(CONFIG, **changes),
        1,
        FixedHeadTokenizer([*SPECIAL_TOKENS, *WORDS]),
        seed=0,
    )
    ids = np.full((len(token_ids), batches.config.sequence_length), PAD, int)
    for row, tokens in zip(ids, token_ids):
        row[: len(tokens)] = tokens
    parts = tf.function(batches.mask)(
        tf.constant(ids, tf.int32), tf.constant(ids != PAD), *draws
    )
    return ids, {name: part.numpy() for name, part in parts.items()}


def items_of(ids, whole_word):
    """The number and the places of each token, or word, that may be masked."""
    items, number, special = [], -1, True
    for place, token in enumerate(ids):
        begins = special or token < FIRST or not (token - FIRST) % 2
        number += begins or not whole_word
        special = token in (PAD, START, END)
        if special:
            continue
        if begins or not whole_word:
            items.append((number, []))
        items[-1][1].append(place)
    return items


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("limit, rate", [(4, 0.15), (50, 0.15), (60, 1.0)])
def test_masks_what_comes_first_in_the_drawn_order(whole_word, limit, rate):
    rng = np.random.default_rng(0)
    texts = [
        [
            rng.integers(FIRST, FIRST + 8, n).tolist()
            for n in rng.integers(30, size=2)
        ]
        for _ in range(ROWS)
    ]
    token_ids = [[START, *one, END, *two, END] for one, two in texts]
    order = rng.random([ROWS, LENGTH])
    draws = order, np.zeros([ROWS, limit]), np.zeros([ROWS, limit])
    ids, found = masked(
        token_ids,
        draws,
        max_predictions=limit,
        mask_selection_rate=rate,
        mask_token_rate=1.0,
        random_token_rate=0.0,
        whole_word=whole_word,
    )
    for i, row in enumerate(ids):
        items = items_of(row, whole_word)
        count = sum(len(places) for _, places in items)
        budget = min(int(np.ceil(np.float32(count) * np.float32(rate))), limit)
        # From the first item on until one does not fit.
        expected = []
        for _, places in sorted(items, key=lambda item: order[i][item[0]]):
            if len(expected) + len(places) > budget:
                break
            expected += places
        expected = sorted(expected)
        padding = [0] * (limit - len(expected))
        assert found["mask_positions"][i].tolist() == expected + padding
        assert found["mask_ids"][i].tolist() == [*row[expected], *padding]
        weights = [1.0] * len(expected) + padding
        assert found["mask_weights"][i].tolist() == weights
        row[expected] = MASK
        assert found["token_ids"][i].tolist() == row.tolist()


def test_chooses_at_the_borders_of_the_draws():
    # 3/4 become [MASK], 1/8 any of 13 tokens, 1/8 stay 7.
    below = np.nextafter
    action = [
        [0.0, below(0.75, 0), 0.75, 0.8, below(0.875, 0)],
        [0.875, below(1.0, 0), 0.0, 0.0, 0.0],
        [0.75, 0.9, 0.0, 0.0, 0.0],
    ]
    replacement = [
        [0.5, 0.5, 0.0, 5 / 13 - 1e-9, below(1.0, 0)],
        [0.5, 0.5, 0.5, 0.5, 0.5],
        [5 / 13 + 1e-9, 0.5, 0.5, 0.5, 0.5],
    ]
    _, found = masked(
        [[START, *[7] * count, END] for count in (5, 2, 2)],
        (np.zeros([3, 8]), np.array(action), np.array(replacement)),
        sequence_length=8,
        max_predictions=5,
        mask_selection_rate=1.0,
        mask_token_rate=0.75,
        random_token_rate=0.125,
    )
    assert len(SPECIAL_TOKENS) + len(WORDS) == 13
    assert found["token_ids"].tolist() == [
        [START, MASK, MASK, 0, 4, 12, END, PAD],
        [START, 7, 7, END, *[PAD] * 4],
        [START, 5, 7, END, *[PAD] * 4],
    ]
