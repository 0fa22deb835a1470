"""From texts to an embedder's inputs: lengths, and [PAD] within a text."""

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
