"""The one WordPiece tokenizer that training and the exported graph share.

BERT's tokenization, id for id. It exists twice: as TensorFlow graph operations
(for `tf.data` and for SavedModels) and, where there is no graph, in Python with
the parts of the `tokenizers` package, which needs no TensorFlow.
"""

import collections
import functools
import unicodedata

import keras
import keras_hub
import numpy as np
import tokenizers

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.offsets import Offsets

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Longer words become [UNK].
_MAX_BYTES_PER_WORD = 100

_CLEANER = tokenizers.normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=True,
    strip_accents=False,
    lowercase=False,
)
_SPLITTER = tokenizers.pre_tokenizers.BertPreTokenizer()


def normalize(text, lowercase=True):
    """BERT's text normalization as TensorFlow graph operations.

    Removes control and format characters, turns every kind of space into a
    space and, if `lowercase`, lower-cases and removes accents. Bytes that are
    not UTF-8 are removed, as BERT removes U+FFFD.

    Args:
        text: string `tf.Tensor` of any shape, UTF-8.
        lowercase: bool.

    Returns:
        A string `tf.Tensor` of the same shape.
    """
    import tensorflow as tf
    import tensorflow_text as tf_text

    text = tf.strings.unicode_transcode(
        text,
        "UTF-8",
        "UTF-8",
        errors="ignore",
        replace_control_characters=False,
    )
    text = tf.strings.regex_replace(text, r"[\t\n\r\p{Z}]+", " ")
    text = tf.strings.regex_replace(text, r"[\p{Cc}\p{Cf}\x{FFFD}]+", "")
    if lowercase:
        text = tf.strings.lower(text, encoding="utf-8")
        text = tf_text.normalize_utf8(text, "NFD")
        text = tf.strings.regex_replace(text, r"\p{Mn}+", "")
    return text


def _normalize_python(text, lowercase):
    """`normalize` for a Python string, CJK characters set apart."""
    text = _CLEANER.normalize_str(text)
    if lowercase:
        # Not through the cleaner, which lower-cases letter by letter and so
        # does not know a final sigma.
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return text


# The same objects each time, for which widths of characters are remembered.
_NORMALIZERS = {
    lowercase: functools.partial(_normalize_python, lowercase=lowercase)
    for lowercase in (False, True)
}


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTokenizer(keras_hub.tokenizers.WordPieceTokenizer):
    """BERT's WordPiece tokenizer, equal to the original id for id.

    `keras_hub.models.BertTokenizer` and tensorflow-text's `BertTokenizer`
    differ from it where case folding is not lower-casing (Greek final sigma,
    the acute accent, non-breaking hyphens and their like).

    Args:
        vocabulary: a list of tokens, or the path of a file with one a line.
            It must hold `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]`.
        lowercase: bool. Whether to lower-case and to remove accents.
        **kwargs: `name`, `dtype` as in `keras.layers.Layer`.

    Call arguments:
        inputs: a string, or a list or tensor of B strings.

    Returns:
        Lists of ids (a `tf.RaggedTensor` `[B, None]` in TensorFlow graphs),
        without special tokens.
    """

    backbone_cls = FixedHeadBackbone

    def __init__(self, vocabulary=None, lowercase=True, **kwargs):
        for token, name in zip(
            SPECIAL_TOKENS, ("pad", "unk", "start", "end", "mask")
        ):
            self._add_special_token(token, f"{name}_token")
        super().__init__(
            vocabulary=vocabulary,
            lowercase=lowercase,
            strip_accents=lowercase,
            **kwargs,
        )

    def set_vocabulary(self, vocabulary):
        if isinstance(vocabulary, (list, tuple)):
            counts = collections.Counter(vocabulary)
            twice = [token for token in counts if counts[token] > 1]
            if twice:
                raise ValueError(
                    "The tokens of `vocabulary` must be different. Received "
                    f"more than once: {twice[:10]}"
                )
        super().set_vocabulary(vocabulary)
        self.__dict__.pop("_word_piece", None)

    def _set_vocabulary_tf(self):
        import tensorflow_text as tf_text

        # Splits at spaces, punctuation and CJK characters itself, unlike the
        # one of the base class, and so needs one pass over the text.
        self._fast_word_piece = tf_text.FastWordpieceTokenizer(
            vocab=self.vocabulary,
            max_bytes_per_word=_MAX_BYTES_PER_WORD,
            token_out_type=self.compute_dtype,
            suffix_indicator=self.suffix_indicator,
            unknown_token=self.oov_token,
            support_detokenization=True,
        )

    def tokenize_in_graph(self, text):
        """The same ids by TensorFlow operations, in eager mode too.

        Args:
            text: string `tf.Tensor` `[B]`, UTF-8.

        Returns:
            An int32 `tf.RaggedTensor` `[B, None]`.
        """
        self._maybe_initialized_tf()
        return self._fast_word_piece.tokenize(normalize(text, self.lowercase))

    def _tokenize_tf(self, inputs):
        import tensorflow as tf

        return self.tokenize_in_graph(tf.convert_to_tensor(inputs))

    @functools.cached_property
    def _word_piece(self):
        return tokenizers.models.WordPiece(
            vocab=self._token_to_id_map,
            unk_token=self.oov_token,
            continuing_subword_prefix=self.suffix_indicator,
            max_input_chars_per_word=_MAX_BYTES_PER_WORD,
        )

    def _tokenize_python(self, inputs):
        if isinstance(inputs, (str, bytes)):
            return self._tokenize_python([inputs])[0]
        rows = []
        for text in np.asarray(inputs, dtype=object).ravel():
            if isinstance(text, bytes):
                text = text.decode("utf-8", "ignore")
            words = _SPLITTER.pre_tokenize_str(
                _normalize_python(text, self.lowercase)
            )
            rows.append([i for word, _ in words for i, _ in self._pieces(word)])
        return rows

    def _pieces(self, word):
        """Yields the id and the length of each part of a normalized word."""
        if len(word.encode()) > _MAX_BYTES_PER_WORD:
            yield self.unk_token_id, len(word)
            return
        prefix = 0
        for token in self._word_piece.tokenize(word):
            if token.id == self.unk_token_id:
                yield token.id, len(word)
            else:
                yield token.id, len(token.value) - prefix
            prefix = len(self.suffix_indicator)

    def tokenize_with_offsets(self, text):
        """The same ids, and which characters each comes from.

        In Python. Tokens may share characters: what Unicode writes as one
        letter can be several after normalization, such as a Korean syllable.

        Args:
            text: str.

        Returns:
            Three lists of ints, one of each a token: the ids; where tokens
            start in `text`; and where they end, the first place after. Both
            never fall. `[UNK]` stands for a whole word.

        Raises:
            TypeError: if `text` is not a string.
        """
        if not isinstance(text, str):
            raise TypeError(
                "`text` must be a string; bytes have other places. "
                f"Received: text={text!r}"
            )
        normalizer = _NORMALIZERS[bool(self.lowercase)]
        offsets = Offsets(text, normalizer)
        ids, starts, ends = [], [], []
        for word, (place, _) in _SPLITTER.pre_tokenize_str(normalizer(text)):
            for token_id, length in self._pieces(word):
                start, end = offsets.span(place, place + length)
                ids.append(token_id)
                starts.append(start)
                ends.append(end)
                place += length
        return ids, starts, ends

    def get_config(self):
        config = super().get_config()
        return {
            name: config[name]
            for name in config
            if name in ("name", "trainable", "dtype", "config_file")
        } | {"lowercase": self.lowercase}
