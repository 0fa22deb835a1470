"""An id of [PAD] within a text is a real token, in tasks on two texts."""

import keras
import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

VOCABULARY = [*SPECIAL_TOKENS, "a", "b"]
FIRST, SECOND = ["a [PAD]", "a", "[PAD]"], ["b", "[PAD] [PAD]", "a b a [PAD]"]
IDS = [
    [2, 5, 0, 3, 6, 3, 0, 0],
    [2, 5, 3, 0, 0, 3, 0, 0],
    [2, 0, 3, 5, 6, 5, 0, 3],
]


@pytest.fixture(params=["classifier", "labeler"])
def preprocessor(request):
    tokenizer = FixedHeadTokenizer(VOCABULARY, special_tokens_in_strings=True)
    if request.param == "classifier":
        return FixedHeadTextClassifierPreprocessor(tokenizer, sequence_length=8)
    return FixedHeadSpanLabelerPreprocessor(
        tokenizer, sequence_length=8, max_question_length=3
    )


def check(found):
    found = {k: keras.ops.convert_to_numpy(x) for k, x in found.items()}
    np.testing.assert_array_equal(found["token_ids"], IDS)
    np.testing.assert_array_equal(
        found["padding_mask"], np.arange(8) < [[6], [6], [8]]
    )


def test_pad_within_a_text_is_a_real_token(preprocessor):
    found, y = preprocessor((FIRST, SECOND), y=np.zeros(3))
    check(found)
    assert y.shape == (3,)


def test_pad_within_a_text_of_a_dataset(preprocessor):
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices(((FIRST, SECOND), [0, 1, 2]))
    found, _ = next(iter(dataset.batch(3).map(preprocessor)))
    check(found)
