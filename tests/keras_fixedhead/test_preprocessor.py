"""What the preprocessors share: [PAD] within a text, rows without room."""

import keras
import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTextEmbedderPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

VOCABULARY = [*SPECIAL_TOKENS, "a", "b"]
TEXTS = ["a [PAD] b", "[PAD]", "a b", "a b a b a b a b [PAD]"]
TEXT_IDS = [
    [2, 5, 0, 6, 3, 0, 0, 0],
    [2, 0, 3, 0, 0, 0, 0, 0],
    [2, 5, 6, 3, 0, 0, 0, 0],
    [2, 5, 6, 5, 6, 5, 6, 3],
]
PAIRS = (
    ["a [PAD]", "a", "[PAD]", "b"],
    ["b", "[PAD] [PAD]", "a b a [PAD]", "b"],
)
PAIR_IDS = [
    [2, 5, 0, 3, 6, 3, 0, 0],
    [2, 5, 3, 0, 0, 3, 0, 0],
    [2, 0, 3, 5, 6, 5, 0, 3],
    [2, 6, 3, 6, 3, 0, 0, 0],
]
REAL = {"text": [5, 3, 4, 8], "pair": [6, 6, 8, 5]}


def new(cls, **arguments):
    tokenizer = FixedHeadTokenizer(VOCABULARY, special_tokens_in_strings=True)
    return cls(tokenizer, sequence_length=8, **arguments)


@pytest.fixture(params=["embedder", "classifier", "labeler"])
def case(request):
    """A preprocessor, texts, their ids and numbers of real tokens."""
    if request.param == "embedder":
        made = new(FixedHeadTextEmbedderPreprocessor)
        return made, TEXTS, TEXT_IDS, REAL["text"]
    if request.param == "classifier":
        made = new(FixedHeadTextClassifierPreprocessor)
    else:
        made = new(FixedHeadSpanLabelerPreprocessor, max_question_length=3)
    return made, PAIRS, PAIR_IDS, REAL["pair"]


def check(found, ids, real):
    found = {k: keras.ops.convert_to_numpy(x) for k, x in found.items()}
    np.testing.assert_array_equal(found["token_ids"], ids)
    mask = np.arange(8) < np.array(real)[:, None]
    np.testing.assert_array_equal(found["padding_mask"], mask)


def test_pad_within_a_text_is_a_real_token(case):
    preprocessor, texts, *expected = case
    found, y = preprocessor(texts, y=np.zeros(4))
    check(found, *expected)
    assert y.shape == (4,)


@pytest.mark.any_backend
def test_pad_within_a_text_of_a_dataset(case):
    tf = pytest.importorskip("tensorflow")
    preprocessor, texts, *expected = case
    dataset = tf.data.Dataset.from_tensor_slices((texts, [0, 1, 2, 3]))
    found, _ = next(iter(dataset.batch(4).map(preprocessor)))
    check(found, *expected)


@pytest.mark.any_backend
def test_pad_within_one_text_of_a_dataset():
    tf = pytest.importorskip("tensorflow")
    preprocessor = new(FixedHeadTextEmbedderPreprocessor)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS)
    for found in (
        next(iter(dataset.map(preprocessor).batch(4))),
        preprocessor.pad_to_longest(TEXTS),
    ):
        check(found, TEXT_IDS, REAL["text"])


@pytest.mark.any_backend
@pytest.mark.parametrize("length", [2, 1, 0, -3])
def test_lengths_without_room_for_a_token(length):
    tokenizer = FixedHeadTokenizer(VOCABULARY)
    with pytest.raises(ValueError, match=f"over 2.*sequence_length={length}"):
        FixedHeadTextEmbedderPreprocessor(tokenizer, sequence_length=length)
    preprocessor = FixedHeadTextEmbedderPreprocessor(tokenizer)
    with pytest.raises(ValueError, match=f"over 2.*length={length}"):
        preprocessor.pad_to_longest(["a"], sequence_length=length)
