"""From texts to an embedder's inputs: lengths, and [PAD] within a text."""

import keras
import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadTextEmbedderPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

VOCABULARY = [*SPECIAL_TOKENS, "a", "b", "pad", "[", "]"]


@pytest.mark.any_backend
@pytest.mark.parametrize("length", [2, 1, 0, -3])
def test_lengths_without_room_for_a_token(length):
    tokenizer = FixedHeadTokenizer(VOCABULARY)
    with pytest.raises(ValueError, match=f"over 2.*sequence_length={length}"):
        FixedHeadTextEmbedderPreprocessor(tokenizer, sequence_length=length)
    preprocessor = FixedHeadTextEmbedderPreprocessor(tokenizer)
    with pytest.raises(ValueError, match=f"over 2.*length={length}"):
        preprocessor.pad_to_longest(["a"], sequence_length=length)


@pytest.mark.any_backend
def test_pad_within_a_text_is_a_real_token():
    import tensorflow as tf

    preprocessor = FixedHeadTextEmbedderPreprocessor(
        FixedHeadTokenizer(VOCABULARY, special_tokens_in_strings=True),
        sequence_length=7,
    )
    texts = ["a [PAD] b", "[PAD]", "a b", "a b a b a b a [PAD]"]
    ids = [
        [2, 5, 0, 6, 3, 0, 0],
        [2, 0, 3, 0, 0, 0, 0],
        [2, 5, 6, 3, 0, 0, 0],
        [2, 5, 6, 5, 6, 5, 3],
    ]
    mask = np.arange(7) < [[5], [3], [4], [7]]
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    for found in (
        preprocessor(texts),
        preprocessor.pad_to_longest(texts),
        next(iter(dataset.batch(4).map(preprocessor))),
        next(iter(dataset.map(preprocessor).batch(4))),
    ):
        found = {k: keras.ops.convert_to_numpy(x) for k, x in found.items()}
        np.testing.assert_array_equal(found["token_ids"], ids)
        np.testing.assert_array_equal(found["padding_mask"], mask)
