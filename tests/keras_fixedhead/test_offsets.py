"""Where tokens stand in a text: beside Hugging Face's, and on odd letters."""

import random
import unicodedata

import pytest

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

# Letters that normalization removes, splits, sets apart or changes.
ODD = [
    *"aeiostABC ES.,-'[]#",
    *"éÉñçİıßẞſσςΣ",
    "e\u0301",
    "o\u0323\u0302",
    "\u0301",
    "\u0302\u0323",
    "\ufe0f",
    *"中国日本한국어각",
    *"\u3000\u00a0\u2028\t\n\r",
    *"\x00\x07\u00ad\u200b\ufeff\ufffd\u0085",
    "🙂",
    "👩\u200d👩",
    *"½①ﬁｆ\u2011",
]
NUM_TEXTS = 500

pytestmark = pytest.mark.any_backend


@pytest.fixture(params=[True, False], ids=["lowercase", "cased"])
def ours(request):
    """All letters but Korean ones, alone and within words, and some words."""
    text = "".join(ODD)
    text += unicodedata.normalize("NFD", text.lower())
    letters = dict.fromkeys(
        letter
        for letter in text
        if letter.isprintable() and not "\u1100" <= letter <= "\u11ff"
    )
    return FixedHeadTokenizer(
        [
            *SPECIAL_TOKENS,
            *letters,
            *(f"##{letter}" for letter in letters),
            *("ab", "##ea", "tio", "ſs"),
        ],
        lowercase=request.param,
    )


def odd_texts():
    draw = random.Random(0)
    for _ in range(NUM_TEXTS):
        yield "".join(draw.choices(ODD, k=draw.randint(0, 29)))


def test_ids_and_places_of_odd_texts(ours):
    whole = 0
    for text in odd_texts():
        ids, starts, ends = ours.tokenize_with_offsets(text)
        assert ids == ours(text), repr(text)
        assert len(ids) == len(starts) == len(ends)
        assert starts == sorted(starts) and ends == sorted(ends), repr(text)
        for token_id, start, end in zip(ids, starts, ends):
            assert 0 <= start < end <= len(text), repr(text)
            # Within a word a piece has another form.
            token = ours.id_to_token(token_id)
            if token.startswith("##") or token == "[UNK]":
                continue
            assert ours(text[start:end])[:1] == [token_id], repr(text)
            whole += 1
    assert whole > 3 * NUM_TEXTS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Attention heads", ["Attention", "head", "s"]),
        (" a\u00adtion, b ", ["a", "tion", ",", "b"]),
        ("cafe\u0301 b", ["c", "a", "f", "e\u0301", "b"]),
        ("İb", ["İ", "b"]),
        ("Σaς ΣAΣ", ["Σ", "a", "ς", "Σ", "A", "Σ"]),
        ("a中b", ["a", "中", "b"]),
        ("x🙂y [SEP]", ["x🙂y", "[", "S", "E", "P", "]"]),
        ("", []),
        (" \ufffd\n", []),
    ],
)
def test_what_stands_there(vocabulary, text, expected):
    tokenizer = FixedHeadTokenizer([*vocabulary, "##σ", "##ς", "##中"])
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    assert [text[i:j] for i, j in zip(starts, ends)] == expected
    assert ids == tokenizer(text)


def test_a_word_that_is_too_long_is_one_token(vocabulary):
    tokenizer = FixedHeadTokenizer(vocabulary)
    ids, starts, ends = tokenizer.tokenize_with_offsets("b " + "é" * 101 + " a")
    assert ids[1] == tokenizer.unk_token_id
    assert list(zip(starts, ends)) == [(0, 1), (2, 103), (104, 105)]


def test_bytes_are_an_error(vocabulary):
    with pytest.raises(TypeError, match="`text` must be a string.*b'head'"):
        FixedHeadTokenizer(vocabulary).tokenize_with_offsets(b"head")
