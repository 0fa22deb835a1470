"""BERT's text normalization and word splitting as TensorFlow operations.

The results equal those of Hugging Face's `tokenizers` on every code point.
`tokenizers`, ICU and RE2 implement different versions of Unicode, so the
character classes are read from `tokenizers`.

Shape letters: B texts, W words of a text.
"""

import functools
import re
import typing
import unicodedata
from collections.abc import Callable, Sequence

import tokenizers

from keras_fixedhead.layer_config import Tensor

# All assigned characters except ideographs, Korean syllables and private use.
_RANGES = (range(0x3400), range(0xA000, 0xAC00), range(0xFB00, 0x1F000))
_TAGS = range(0xE0000, 0xE1000)
# BERT's ranges, but for U+2B820 to U+2B91F, which `tokenizers` leaves out.
_IDEOGRAPHS = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}"
    r"\x{20000}-\x{2A6DF}\x{2A700}-\x{2B81F}\x{2B920}-\x{2CEAF}"
    r"\x{2F800}-\x{2FA1F}"
)
# Cleaning removes private use characters, so they are free as placeholders:
# those of plane 15 for characters hidden from ICU, those of plane 16 for
# special tokens.
_PRIVATE = r"\x{E000}-\x{F8FF}\x{F0000}-\x{FFFFD}"
_PRIVATE_16 = r"\x{100000}-\x{10FFFD}"
_HIDDEN = 0xF0000
_SPECIAL = 0x100000
# A letter that normalization keeps and that no other character becomes.
_BETWEEN = "þ"


class CharacterClasses(typing.NamedTuple):
    """The contents of RE2 character classes."""

    removed: str  # control, format and private use, U+FFFD; not plane 16
    space: str  # white space except U+0020
    accents: str  # the marks that accent stripping removes
    alone: str  # punctuation and CJK characters; each is a word


def normalizer(**steps: bool) -> Callable[[str], str]:
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    steps = dict.fromkeys(names, False) | steps
    return tokenizers.normalizers.BertNormalizer(**steps).normalize_str


def _class_of(characters):
    ranges = []
    for point in sorted(map(ord, characters)):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(rf"\x{{{a:X}}}-\x{{{b:X}}}" for a, b in ranges)


@functools.cache
def character_classes() -> CharacterClasses:
    """Reads the classes from `tokenizers`, once per process."""
    # Skips letters, and characters unassigned in Python's newer Unicode.
    characters = [
        chr(point)
        for points in (*_RANGES, _TAGS)
        for point in points
        if unicodedata.category(chr(point)) not in ("Cn", "Lo", "Ll", "Lu")
    ]
    text = _BETWEEN.join(characters)
    clean = normalizer(clean_text=True)(text).split(_BETWEEN)
    plain = normalizer(strip_accents=True)(text).split(_BETWEEN)
    words = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)

    def changed_to(value, results):
        return [c for c, x in zip(characters, results) if x == value != c]

    return CharacterClasses(
        _class_of(changed_to("", clean)) + _PRIVATE,
        _class_of(changed_to(" ", clean)),
        _class_of(changed_to("", plain)),
        _class_of({word for word, _ in words if len(word) == 1} - {_BETWEEN})
        + _IDEOGRAPHS,
    )


@functools.cache
def _lower_where_icu_differs():
    """Maps each character that ICU normalizes differently to its lower case."""
    import tensorflow as tf

    characters = [chr(i) for points in _RANGES for i in points if i > 0x7F]
    # Between marks of a low and a high combining class, a mark of any class
    # is reordered.
    marked = [f"{c}\u0334\u0345{c}" for c in characters]
    nfd = tokenizers.normalizers.NFD().normalize_str
    fold = normalizer(strip_accents=True, lowercase=True)
    differing = set()
    for normalize, icu, texts in (
        (nfd, _decompose, marked),
        (fold, _fold, characters),
    ):
        text = "\n".join(texts)
        with tf.init_scope():
            found = icu(tf.constant(text)).numpy().decode()
        rows = zip(characters, normalize(text).split("\n"), found.split("\n"))
        differing |= {c for c, theirs, icus in rows if theirs != icus}
    lower = normalizer(lowercase=True)
    return {c: lower(c) for c in sorted(differing)}


def placeholders(special_tokens: Sequence[str]) -> list[str]:
    """The words that `words` returns for special tokens."""
    return [chr(_SPECIAL + i) for i in range(len(special_tokens))]


def words(
    text: Tensor, lowercase: bool = True, special_tokens: Sequence[str] = ()
) -> Tensor:
    """Normalizes texts, string `[B]`, and splits them into words.

    Special tokens become the words of `placeholders`. Returns a string
    `tf.RaggedTensor` `[B, W]`.
    """
    import tensorflow as tf

    replace = tf.strings.regex_replace
    classes = character_classes()
    removed = classes.removed
    text = tf.strings.unicode_transcode(
        text,
        "UTF-8",
        "UTF-8",
        errors="ignore",
        replace_control_characters=False,
    )
    if special_tokens:
        text = replace(text, f"[{_PRIVATE_16}]", "\ufffd")
        for token, word in zip(special_tokens, placeholders(special_tokens)):
            text = replace(text, re.escape(token), f" {word} ")
    else:
        removed += _PRIVATE_16
    text = replace(text, f"[{classes.space}]", " ")
    text = replace(text, f"[{removed}]+", "")
    if lowercase:
        text = _lower(text)
    return tf.strings.split(replace(text, f"[{classes.alone}]", r" \0 "))


def _lower(text):
    import tensorflow as tf

    lower = _lower_where_icu_differs()
    hidden = [chr(_HIDDEN + i) for i in range(len(lower))]

    def around():
        found = _replace(text, list(lower), hidden)
        found = _decompose(_lower_by_icu(found))
        return _remove_accents(_replace(found, hidden, list(lower.values())))

    has_any = tf.strings.regex_full_match(text, f"(?s).*[{_class_of(lower)}].*")
    return tf.cond(tf.reduce_any(has_any), around, lambda: _fold(text))


def _fold(text):
    return _remove_accents(_decompose(_lower_by_icu(text)))


def _lower_by_icu(text):
    import tensorflow as tf

    # ICU's lower case of an ASCII I depends on the machine's locale, that of
    # a sigma on its position in the word.
    text = tf.strings.regex_replace(tf.strings.lower(text), "Σ", "σ")
    return tf.strings.lower(text, encoding="utf-8")


def _decompose(text):
    import tensorflow_text as tf_text

    return tf_text.normalize_utf8(text, "NFD")


def _remove_accents(text):
    import tensorflow as tf

    accents = character_classes().accents
    return tf.strings.regex_replace(text, f"[{accents}]+", "")


def _replace(text, old, new):
    """Replaces characters; `old` must be sorted."""
    import tensorflow as tf

    old, new = (tf.constant([ord(c) for c in x]) for x in (old, new))
    points = tf.strings.unicode_decode(text, "UTF-8")
    flat = points.flat_values
    place = tf.minimum(tf.searchsorted(old, flat), tf.size(old) - 1)
    flat = tf.where(tf.gather(old, place) == flat, tf.gather(new, place), flat)
    return tf.strings.unicode_encode(points.with_flat_values(flat), "UTF-8")
