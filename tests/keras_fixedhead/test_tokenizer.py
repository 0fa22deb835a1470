"""The tokenizer against Hugging Face's, in the graph and outside of it."""

import keras
import pytest
import tokenizers

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

TEXTS = [
    "",
    " ",
    "Attention heads, attention HEADS.",
    "unattentional",
    "tab\there\nnewline\rreturn",
    "no\u00a0break\u2003em\u3000wide\u2028line",
    "zero\u200bwidth\ufeffbom\u00adsoft\x00nul\x07bell",
    "Ünïcödé É é e\u0301",
    "Σας σας σ",
    "Straße STRASSE ẞ",
    "中文 and 日本語 한국어",
    "non\u2011breaking \u2010 \u00b4acute\u00b4 ´",
    "emoji 🙂 a🙂b \U0001f468\u200d\U0001f469",
    "a" * 100,
    "a" * 101,
    "bad \ufffd mark a\ufffdb",
    "İstanbul ı I i",
    "x^2 + y_1 = $3 `code` ~ <a> {b} |c|",
    "½ ² ① Ⅷ ﬁ ｆｕｌｌ",
    "don't can't — “quoted” …",
]


# Hugging Face lower-cases letter by letter; BERT's own code, Python's and
# ICU's lower() know that a sigma is another letter at the end of a word.
FINAL_SIGMA = "ΣΑΣ ΟΔΟΣ"

needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="the graph's tokenizer, on the backend that has graphs of it",
)


@pytest.fixture(params=[True, False], ids=["lowercase", "cased"])
def ours(request, vocabulary):
    return FixedHeadTokenizer(vocabulary, lowercase=request.param)


@pytest.fixture
def theirs(ours):
    tokenizer = tokenizers.BertWordPieceTokenizer(
        vocab={token: i for i, token in enumerate(ours.get_vocabulary())},
        lowercase=ours.lowercase,
        strip_accents=ours.lowercase,
    )
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def in_graph(tokenizer, texts):
    import tensorflow as tf

    tokenize = tf.function(
        tokenizer, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    return tokenize(tf.constant(texts)).to_list()


def test_equals_hugging_face(ours, theirs):
    assert ours(TEXTS) == [theirs(text) for text in TEXTS]


def test_final_sigma(ours):
    if ours.lowercase:
        assert ours(FINAL_SIGMA) == ours(FINAL_SIGMA.lower())
        sigma, final = ours.token_to_id("σ"), ours.token_to_id("ς")
        assert ours("Σ Σα") != [sigma, final]


@needs_tensorflow
def test_the_graph_equals_python(ours):
    texts = [*TEXTS, FINAL_SIGMA, "[CLS] [MASK] [PAD]", "σ" * 50, "σ" * 51]
    assert in_graph(ours, texts) == ours(texts)


@needs_tensorflow
def test_bytes_that_are_not_utf8(ours):
    texts = [b"\xff\xfe head \xc3", b"he\xffad", b"\xed\xa0\x80 a"]
    assert in_graph(ours, texts) == ours(texts)
    assert ours(texts)[1] == ours("head")


def test_special_tokens_in_a_text_are_text(ours):
    special = {ours.token_to_id(token) for token in SPECIAL_TOKENS}
    assert set(ours("[CLS] [MASK] [PAD]")).isdisjoint(special - {1})


def test_one_text_and_many(ours):
    assert ours("attention heads") == ours(["attention heads"])[0]
    assert ours("") == []
    assert ours([]) == []


def test_vocabulary_without_special_tokens_is_an_error(vocabulary):
    vocabulary.remove("[SEP]")
    with pytest.raises(ValueError, match=r"\[SEP\]"):
        FixedHeadTokenizer(vocabulary)


def test_a_token_twice_is_an_error(vocabulary):
    with pytest.raises(ValueError, match=r"\['head'\]"):
        FixedHeadTokenizer([*vocabulary, "head"])
