"""The vocabulary: learned like the tokenizer reads, or read and checked."""

import pytest

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from training.corpus.vocabulary import learn_vocabulary, read_vocabulary

TEXTS = ["Rereading the café's reading list, readers read: ÉTUDE 猫"] * 5 + [
    "rarities keep zebra letters"
] * 2


def test_learns_what_the_tokenizer_reads():
    tokens = learn_vocabulary(TEXTS, vocabulary_size=300, lowercase=True)
    assert tuple(tokens[:5]) == SPECIAL_TOKENS
    assert len(set(tokens)) == len(tokens)
    assert {"cafe", "etude", "reading", "猫", ":", "z"} <= set(tokens)
    assert not any(token != token.lower() for token in tokens[5:])
    # No text it has learned from holds an unknown word.
    tokenizer = FixedHeadTokenizer(tokens)
    for text in TEXTS:
        assert tokenizer.token_to_id("[UNK]") not in tokenizer(text)
    # Nothing is left of a rare word but its letters.
    assert "rarities" not in tokens

    cased = learn_vocabulary(TEXTS, vocabulary_size=300, lowercase=False)
    assert {"Rereading", "É", "café"} <= set(cased)
    assert "etude" not in cased


@pytest.mark.parametrize("size", [12, 41, 60])
def test_never_more_than_asked_for(size):
    texts = [f"{a}{b}{c}" * 3 for a in "abc" for b in "de" for c in "fg"] * 4
    tokens = learn_vocabulary(texts, size, lowercase=True)
    assert size / 2 < len(tokens) <= size
    assert set("abcdefg") < set(tokens)


def test_letters_stay_where_not_all_fits():
    words = [f"{a}{b}{c}{a}" for a in "abc" for b in "defg" for c in "hijk"]
    texts = [" ".join(words[: 2 + i]) for i in range(len(words))]
    tokens = learn_vocabulary(texts, vocabulary_size=30, lowercase=True)
    assert len(tokens) == 30
    # Only with them can every word be written.
    assert {f"##{letter}" for letter in "abcdefghijk"} < set(tokens)
    tokenizer = FixedHeadTokenizer(tokens)
    for text in texts:
        assert tokenizer.token_to_id("[UNK]") not in tokenizer(text)


def test_needs_words_and_room_for_their_letters():
    with pytest.raises(ValueError, match="at least 7, .*Received: 6"):
        learn_vocabulary(["ab ba"] * 3, vocabulary_size=6, lowercase=True)
    with pytest.raises(ValueError, match="must be words"):
        learn_vocabulary([" ", "\n"], vocabulary_size=100, lowercase=True)


def test_reads_what_a_tokenizer_takes(tmp_path):
    path = tmp_path / "vocabulary.txt"
    tokens = [*SPECIAL_TOKENS, "猫", "##s", "["]
    path.write_text("\n".join(tokens), encoding="utf-8")
    assert read_vocabulary(path) == tokens
    for added, message in (
        (["a", "", "b"], ":10: a token must be a word"),
        (["a b"], ":9: a token must be a word"),
        (["a", "a"], "vocabulary.txt: .*more than once: ..a.."),
    ):
        path.write_text("\n".join([*tokens, *added]), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_vocabulary(path)
    path.write_text("\n".join(tokens[:4]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocabulary.txt: .*\[MASK\]"):
        read_vocabulary(path)
