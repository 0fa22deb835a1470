"""Random words in texts."""

import pytest

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from training.corpus.random_words import RandomWords

TEXTS = [f"so {i} or {j} be" for i in range(30) for j in range(20)]


def tokenizer(*tokens):
    return FixedHeadTokenizer([*SPECIAL_TOKENS, *tokens])


def test_a_fraction_of_the_words_of_every_second_text():
    noisy = RandomWords(tokenizer("red", "green", "##ly", "of", "."), 0.3, 5)
    found = [noisy(text).split() for text in TEXTS]
    assert [len(words) for words in found] == [5] * 600
    replaced = [
        [new for new, old in zip(words, text.split()) if new != old]
        for words, text in zip(found, TEXTS)
    ]
    # Also unchanged: 0.7 ** 5 = 17% of the other half.
    assert 0.36 < sum(map(bool, replaced)) / 600 < 0.47
    assert 0.13 < sum(map(len, replaced)) / 3000 < 0.17
    made = {word for words in replaced for word in words}
    ends = ("", "ly", "lyly")
    assert made == {word + end for word in ("red", "green") for end in ends}


def test_same_seed_same_words():
    some = tokenizer("red", "green", "blue")
    first, again, other = (RandomWords(some, 0.5, seed) for seed in (1, 1, 2))
    found = [first(text) for text in TEXTS]
    assert found == [again(text) for text in TEXTS]
    assert found != [other(text) for text in TEXTS]


def test_errors():
    with pytest.raises(ValueError, match="`random_words` .* 0 and 1.*: 1.5"):
        RandomWords(tokenizer("red"), 1.5, 0)
    with pytest.raises(ValueError, match="without whole words .*: 0.3"):
        RandomWords(tokenizer("a", "##ly"), 0.3, 0)
