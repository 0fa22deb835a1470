"""The tokenizer against Hugging Face's, in the graph and outside of it."""

import functools
import os
import random
import subprocess
import sys
import unicodedata

import keras
import pytest
import tokenizers

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.keras_fixedhead.hugging_face import new_tokenizer

TEXTS = [
    "",
    " ",
    "Attention heads, attention HEADS.",
    "unattentional",
    "tab\there\nnewline\rreturn",
    "no\u00a0break\u2003em\u3000wide\u2028line",
    "zero\u200bwidth\ufeffbom\u00adsoft\x00nul\x07bell",
    "Ünïcödé É é e\u0301",
    "Σας σας σ ΣΑΣ ΟΔΟΣ",
    "Straße STRASSE ẞ",
    "中文 and 日本語 한국어",
    "non\u2011breaking \u2010 \u00b4acute\u00b4 ´",
    "emoji 🙂 a🙂b \U0001f468\u200d\U0001f469",
    "a" * 100,
    "a" * 101,
    "é" * 51 + " " + "ก" * 43 + " " + "σ" * 100 + " " + "σ" * 101,
    "\uf0b7 head\uf0b7s",
    "bad \ufffd mark a\ufffdb",
    "İstanbul ı I i",
    "x^2 + y_1 = $3 `code` ~ <a> {b} |c|",
    "½ ² ① Ⅷ ﬁ ｆｕｌｌ",
    "don't can't — “quoted” …",
]


# Hidden, unhidden and nested special tokens, and what only looks like them.
SPECIAL_TEXTS = [
    "head [SEP] attention",
    "foo[SEP]bar[MASK]s",
    "[CLS][CLS] [PAD] [UNK]a",
    "[sep] [Sep] [SEP",
    "[[SEP]] [CLS[SEP]MASK]",
    "[S\u200bEP] [S\ue000EP] [S\U00100003EP]",
    "\U00100000 \U00100003 \ufffd",
    "E\u0301[SEP]\u0301e",
    "[UNK]" * 21,
]

# Characters whose classes differ among versions of Unicode, marks of which
# some stay, and what comes in sequences.
ODD_CHARACTERS = [
    *map(chr, range(0x20, 0x7F)),
    *"ÄÉÎÕÜçßſİıIΣσςϴ´°ªªǅﬁ½①Ⅷ",
    *"\u0300\u0301\u0307\u0323\u0327\u0334\u0345\u0591\u05bf\u064b\u0670",
    *"\u0898\u08ca\u08d3\u08d4\u08e1\u0c3c\u1715\u1734\u1abf\u1df6\u1dfb",
    *"\u1b44\u1baa\u302a\u302e\ua82c\ua953\ua9c0",
    *"\U00010eab\U00010f46\U0001133b\U0001d165\U0001d16d\U0001e130",
    *"\u1c89\u2c2f\ua7c0\ua7cb\ua7dc\U00010570\U00010d50\U00016ea0",
    *"\U000105c9\U00011383\U000113c5\U00011938\U00016121\U00016d6a",
    *"中国\u3400\uf900\U0002b81f\U0002b820\U0002b91f\U0002f800",
    *"한글각\u1100\u1161\u11a8\u3131กำ\u0e49नमस्ते",
    *"\t\n\r\x00\x0b\x0c\x1f\x7f\x85\xa0\u1680\u180e\u2028\u3000",
    *"\u00ad\u0600\u0890\u08e2\u200b\u200d\u200f\u2069\ufeff\ufffd\ufff9",
    *"\U000110bd\U000110cd\U00013430\U0001343f\U000e0001\U000e0100",
    *"\ue000\uf0b7\uf8ff\U000f0000\U000f0007\U0010fffd\ufdd0\uffff\U0010ffff",
    *"\u2010\u2011\u2e2e\u2e43\u2e5d\u037e\u1fef\u061d\u166d\U000111c9¿¡",
    *"👩👨🙂🏽\ufe0f",
]

needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="the graph's tokenizer, on the backend that has graphs of it",
)


@pytest.fixture(
    scope="module", params=[True, False], ids=["lowercase", "cased"]
)
def ours(request, vocabulary):
    return FixedHeadTokenizer(vocabulary, lowercase=request.param)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "special"])
def with_letters(request, ours):
    """A tokenizer of every letter that odd texts become, and Hugging Face's."""
    letters = letters_of(ODD_CHARACTERS, ours.lowercase)
    return both(letters, ours.lowercase, request.param)


def letters_of(characters, lowercase):
    """All that characters become, alone and within words."""
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    text = normalizer.normalize_str(" ".join(characters))
    letters = [x for x in dict.fromkeys(text) if not x.isspace()]
    return [*letters, *(f"##{x}" for x in letters)]


def both(tokens, lowercase, special=False):
    """Our tokenizer, and Hugging Face's as a `tokenizer.json` describes it."""
    vocabulary = [*SPECIAL_TOKENS, *tokens]
    theirs = new_tokenizer(vocabulary)
    theirs.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=None,
        lowercase=lowercase,
    )
    theirs.add_special_tokens(list(SPECIAL_TOKENS if special else ()))
    ours = FixedHeadTokenizer(
        vocabulary, lowercase=lowercase, special_tokens_in_strings=special
    )
    return ours, theirs


def assert_equal(texts, ids, theirs):
    rows = theirs.encode_batch(texts, add_special_tokens=False)
    differ = [x for x, a, row in zip(texts, ids, rows) if a != row.ids]
    assert not differ, f"{len(differ)} differ: {ascii(differ[:9])}"


@functools.cache
def graph_of(tokenizer):
    import tensorflow as tf

    return tf.function(
        tokenizer, input_signature=[tf.TensorSpec([None], tf.string)]
    )


def in_graph(tokenizer, texts):
    return graph_of(tokenizer)(texts).to_list()


def odd_texts(count):
    draw = random.Random(0)
    pieces = [*ODD_CHARACTERS, *SPECIAL_TOKENS, *SPECIAL_TEXTS]
    for _ in range(count):
        text = "".join(draw.choices(pieces, k=draw.randint(0, 13)))
        if draw.random() < 0.02:
            text += draw.choice("aéก𝔘") * draw.randint(98, 103)
        yield text


in_both = pytest.mark.parametrize(
    "tokenize",
    [
        pytest.param(in_graph, marks=needs_tensorflow),
        lambda tokenizer, texts: tokenizer(texts),
    ],
    ids=["graph", "python"],
)


@in_both
@pytest.mark.parametrize("special", [False, True])
def test_equals_hugging_face(ours, vocabulary, tokenize, special):
    tokens = vocabulary[len(SPECIAL_TOKENS) :]
    ours, theirs = both(tokens, ours.lowercase, special)
    texts = [*TEXTS, *SPECIAL_TEXTS]
    assert_equal(texts, tokenize(ours, texts), theirs)


@needs_tensorflow
def test_every_code_point(ours):
    """Alone, at the start and the end of a word, inside, by punctuation."""
    characters = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
    # Ideographs, Korean, private use and empty planes, which are next to each
    # other; they stay what they are, Korean apart.
    far = {
        x
        for x in characters
        if not (
            x < "\u3400"
            or "\ua000" <= x < "\uac00"
            or "\uf8f0" <= x < "\U0001f000"
        )
    }
    near = [x for x in characters if x not in far]
    single, rows = [], []
    for x in near:
        rare = unicodedata.category(x) in ("Cn", "Co", "Lo")
        # More is done to a text in lower case.
        (single if ours.lowercase and not rare else rows).append(x)
    texts = [f"{x} a{x} {x}ab{x}a.{x}." for x in single]
    for i in range(0, len(rows), 31):
        texts += ["a".join(rows[i : i + 31]), " ".join(rows[i : i + 31])]
    if ours.lowercase:
        far = sorted(far)
        texts += ["".join(far[i : i + 31]) for i in range(0, len(far), 31)]
    letters = letters_of(near, ours.lowercase)
    ours, theirs = both(letters, ours.lowercase)
    assert_equal(texts, in_graph(ours, texts), theirs)
    assert_equal(texts[::37], ours(texts[::37]), theirs)


@needs_tensorflow
def test_odd_texts(with_letters):
    ours, theirs = with_letters
    texts = list(odd_texts(2_003))
    for ids in (in_graph(ours, texts), ours(texts)):
        assert_equal(texts, ids, theirs)


@pytest.mark.any_backend
def test_offsets_of_odd_texts(with_letters):
    ours, theirs = with_letters
    whole = 0
    for text in odd_texts(211):
        ids, starts, ends = ours.tokenize_with_offsets(text)
        assert ids == ours(text)
        expected = theirs.encode(text, add_special_tokens=False).offsets
        assert starts == [start for start, _ in expected]
        assert starts == sorted(starts) and ends == sorted(ends), ascii(text)
        for i, start, end, (_, other) in zip(ids, starts, ends, expected):
            assert 0 <= start < other <= end <= len(text), ascii(text)
            # We count accents that were removed to the letter before.
            assert not ours(text[other:end]), ascii(text)
            token = ours.id_to_token(i)
            # Alone, a piece of a word or an accent is another token.
            if not token.startswith(("##", "[UNK]")) and not (
                unicodedata.category(token[0]).startswith("M")
            ):
                assert ours(text[start:end])[:1] == [i], ascii(text)
                whole += 1
    assert whole > 600


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Attention heads", ["Attention", "head", "s"]),
        ("cafe\u0301 b", ["c", "a", "f", "e\u0301", "b"]),
        ("Σaς ΣAΣ", ["Σ", "a", "ς", "Σ", "A", "Σ"]),
        ("x🙂y [SEP]", ["x🙂y", "[", "S", "E", "P", "]"]),
    ],
)
def test_what_stands_there(vocabulary, text, expected):
    tokenizer = FixedHeadTokenizer([*vocabulary, "##σ", "##ς", "##中"])
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    assert [text[i:j] for i, j in zip(starts, ends)] == expected
    assert ids == tokenizer(text)


@pytest.mark.parametrize("letter", "aéก\U0001e900")
@in_both
def test_the_longest_word(tokenize, letter):
    """A hundred characters, whatever their number of bytes."""
    ours = FixedHeadTokenizer(
        [*SPECIAL_TOKENS, letter, f"##{letter}", "b"], lowercase=False
    )
    texts = [letter * 100, letter * 101, f"b {letter * 5_003}.b", "b" * 101]
    whole, long, between, other = tokenize(ours, texts)
    assert whole == [5] + [6] * 99
    assert long == other == [ours.unk_token_id]
    assert between == [7, ours.unk_token_id, ours.unk_token_id, 7]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["tr_TR.UTF-8", "lt_LT.UTF-8"])
def test_the_language_of_the_machine_is_no_matter(language):
    """ICU reads it once a process; to Turkish, i is not the small I."""
    code = """
import tensorflow as tf
from keras_fixedhead import graph_text
print(graph_text.words(tf.constant(["I J Ì İ Į\u0301 ı TITLE"])).to_list())
"""
    output = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LC_ALL": language},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    assert output.strip() == str(
        [[x.encode() for x in ["i", "j", "i", "i", "i", "ı", "title"]]]
    )


@needs_tensorflow
def test_bytes_that_are_not_utf8(ours):
    draw = random.Random(0)
    some = "aé中🙂 .\x00".encode() + b"\xed\xa0\x80\xff\xfe\xc0\xf4\x90"
    texts = [b"\xff\xfe head \xc3", b"he\xffad", b"\xed\xa0\x80 a"]
    texts += [
        bytes(draw.choices(some, k=draw.randint(0, 11))) for _ in range(997)
    ]
    assert in_graph(ours, texts) == ours(texts)
    assert ours(texts)[1] == ours("head")


@needs_tensorflow
def test_a_long_text_and_ones_without_words(ours):
    texts = ["", "\x00", "\u200b \ufeff", "Σas head, İ " * 20_011]
    ids = in_graph(ours, texts)
    assert ids[:3] == [[], [], []]
    assert ids[3] == ours(texts[3])


@pytest.mark.parametrize("special", [False, True])
def test_a_preset_keeps_special_tokens_in_strings(
    make_embedder, vocabulary, tmp_path, special
):
    model = make_embedder()
    model.preprocessor.tokenizer = FixedHeadTokenizer(
        vocabulary, special_tokens_in_strings=special
    )
    model.save_to_preset(str(tmp_path))
    restored = FixedHeadTokenizer.from_preset(str(tmp_path))
    assert restored.special_tokens_in_strings is special
    assert (restored("[SEP]") == [restored.end_token_id]) is special


@pytest.mark.parametrize("text", ["a\ud800b", None, 1])
def test_what_is_no_text_is_an_error(vocabulary, text):
    tokenizer = FixedHeadTokenizer(vocabulary)
    with pytest.raises(TypeError, match="Texts must be strings"):
        tokenizer.tokenize(["head", text])
    with pytest.raises(TypeError, match="Texts must be .*b'head'"):
        tokenizer.tokenize_with_offsets(b"head")


def test_one_text_and_none(ours):
    assert ours("attention heads") == ours(["attention heads"])[0]
    assert ours([]) == []
    assert ours.detokenize([[3, 1, 5]]) == ["[SEP] [UNK] attention"]


def test_wrong_vocabularies(vocabulary):
    with pytest.raises(ValueError, match=r"\['head'\]"):
        FixedHeadTokenizer([*vocabulary, "head"])
    vocabulary = [token for token in vocabulary if token != "[SEP]"]
    with pytest.raises(ValueError, match=r"\[SEP\]"):
        FixedHeadTokenizer(vocabulary)
