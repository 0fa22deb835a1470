"""Texts and pairs of texts as inputs of a classifier: by hand, in a graph."""

import keras
import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTokenizer,
)
from tests.tiny_models import as_numpy

in_a_graph = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graph operations"
)


@pytest.fixture
def new_preprocessor(vocabulary):
    def new(sequence_length=13, **arguments):
        return FixedHeadTextClassifierPreprocessor(
            FixedHeadTokenizer(vocabulary),
            sequence_length=sequence_length,
            **arguments,
        )

    return new


@pytest.mark.any_backend
def test_unknown_truncation_is_an_error(new_preprocessor):
    with pytest.raises(ValueError, match="`truncate` .* truncate='longest'"):
        new_preprocessor(truncate="longest")


def test_pairs_by_hand(new_preprocessor, vocabulary):
    preprocessor = new_preprocessor()
    first, second = ["attention heads", "中"], ["a, b.", ""]
    batch = as_numpy(preprocessor((first, second), y=None))
    rows = [
        "[CLS] attention head ##s [SEP] a , b . [SEP]".split(),
        "[CLS] 中 [SEP] [SEP]".split(),
    ]
    for number, row in enumerate(rows):
        found = [vocabulary[i] for i in batch["token_ids"][number]]
        assert found == row + ["[PAD]"] * (13 - len(row))
        real = np.arange(13) < len(row)
        np.testing.assert_array_equal(batch["padding_mask"][number], real)
    assert batch["segment_ids"].tolist() == [
        [0] * 5 + [1] * 5 + [0] * 3,
        [0] * 3 + [1] + [0] * 9,
    ]


def random_texts(rng, count):
    return [
        " ".join(rng.choice(list("abcdefg"), rng.integers(0, 17)))
        for _ in range(count)
    ]


@in_a_graph
@pytest.mark.parametrize("truncate", ["round_robin", "waterfall"])
def test_pad_to_longest(new_preprocessor, truncate):
    rng = np.random.default_rng(0)
    first, second = random_texts(rng, 97), random_texts(rng, 97)
    for length in (4, 5, 12, 13, 37):
        preprocessor = new_preprocessor(
            sequence_length=length, truncate=truncate
        )
        for texts in ((first, second), (first,)):
            given = texts if len(texts) == 2 else first
            expected = as_numpy(preprocessor(given, y=None))
            longest = int(expected["padding_mask"].sum(axis=1).max())
            batch = preprocessor.pad_to_longest(*texts)
            assert batch.keys() == expected.keys()
            for name, values in batch.items():
                assert values.dtype == "int32"
                np.testing.assert_array_equal(
                    values, expected[name][:, :longest]
                )


@in_a_graph
def test_pad_to_longest_limits(new_preprocessor):
    preprocessor = new_preprocessor()
    long = ["a b c d e f g h i j k"]
    assert preprocessor.pad_to_longest(long)["token_ids"].shape == (1, 13)
    for limit in (7, 29):
        ids = preprocessor.pad_to_longest(long, long, sequence_length=limit)
        assert ids["token_ids"].shape == (1, min(limit, 13))
    # Rows no longer than they have to be.
    short = preprocessor.pad_to_longest(["a", ""], ["b c", ""])
    assert short["padding_mask"].numpy().tolist() == [
        [1] * 6,
        [1] * 3 + [0] * 3,
    ]
    with pytest.raises(ValueError, match="over 3, the special .*=3"):
        preprocessor.pad_to_longest(long, long, sequence_length=3)
    with pytest.raises(ValueError, match="over 2, the special .*=2"):
        preprocessor.pad_to_longest(long, sequence_length=2)
