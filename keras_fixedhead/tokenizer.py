"""The WordPiece tokenizer of training and of the exported graph.

It has two implementations: TensorFlow graph operations, for `tf.data` and
SavedModels, and Hugging Face's `tokenizers`, which needs no TensorFlow.
"""

import collections
import functools
import os
import re
from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
import tokenizers

from keras_fixedhead import graph_text
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import Tensor

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Longer words become [UNK].
_MAX_CHARACTERS_PER_WORD = 100

_without_accents = graph_text.normalizer(strip_accents=True)


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTokenizer(keras_hub.tokenizers.WordPieceTokenizer):
    """BERT's WordPiece tokenizer; its ids equal the original's.

    `keras_hub.models.BertTokenizer` and tensorflow-text's `BertTokenizer`
    differ from it where case folding is not lower-casing, such as for Greek
    final sigma, the acute accent and non-breaking hyphens.

    Args:
        vocabulary: a list of tokens, or the path of a file with one per line.
            It must contain `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]`.
        lowercase: whether to lower-case and to remove accents.
        special_tokens_in_strings: whether to map special tokens in a text, as
            in `"title [SEP] abstract"`, to their ids, as Hugging Face's
            tokenizers do. Enable it only for trusted text.

    Calling it with a string, or a list or tensor of B strings, returns lists
    of ids (a `tf.RaggedTensor` `[B, None]` in TensorFlow graphs), without
    special tokens.
    """

    backbone_cls = FixedHeadBackbone

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike | None = None,
        lowercase: bool = True,
        special_tokens_in_strings: bool = False,
        **kwargs: Any,
    ):
        for token, name in zip(
            SPECIAL_TOKENS, ("pad", "unk", "start", "end", "mask")
        ):
            self._add_special_token(token, f"{name}_token")
        super().__init__(
            vocabulary=vocabulary,
            lowercase=lowercase,
            strip_accents=lowercase,
            special_tokens_in_strings=special_tokens_in_strings,
            **kwargs,
        )
        # Keras refuses to quantize a model that holds an unbuilt layer.
        self.built = True

    def set_vocabulary(
        self, vocabulary: Sequence[str] | str | os.PathLike | None
    ) -> None:
        if isinstance(vocabulary, (list, tuple)):
            counts = collections.Counter(vocabulary)
            twice = [token for token, count in counts.items() if count > 1]
            if twice:
                raise ValueError(
                    "The tokens of `vocabulary` must be different. "
                    f"Received more than once: {twice[:10]}"
                )
        super().set_vocabulary(vocabulary)
        self.__dict__.pop("_reference", None)

    @property
    def special_tokens_in_texts(self) -> tuple[str, ...]:
        return SPECIAL_TOKENS if self.special_tokens_in_strings else ()

    def _set_vocabulary_tf(self):
        import tensorflow_text as tf_text

        # The placeholders' ids follow the vocabulary's.
        special = graph_text.placeholders(self.special_tokens_in_texts)
        self._fast_word_piece = tf_text.FastWordpieceTokenizer(
            vocab=[*self.vocabulary, *special],
            # UTF-8 uses at most four bytes per character.
            max_bytes_per_word=4 * _MAX_CHARACTERS_PER_WORD,
            token_out_type=self.compute_dtype,
            suffix_indicator=self.suffix_indicator,
            unknown_token=self.oov_token,
            no_pretokenization=True,
            support_detokenization=True,
        )

    def tokenize_in_graph(self, text: Tensor) -> Tensor:
        """The same ids by TensorFlow operations, in eager mode too.

        Takes strings `[B]`; returns an int32 `tf.RaggedTensor` `[B, None]`.
        """
        import tensorflow as tf

        self._maybe_initialized_tf()
        special = self.special_tokens_in_texts
        words = graph_text.words(text, self.lowercase, special)
        flat = words.flat_values
        long = tf.strings.length(flat, "UTF8_CHAR") > _MAX_CHARACTERS_PER_WORD
        flat = tf.where(long, self.oov_token, flat)
        ids = self._fast_word_piece.tokenize(flat)
        if special:
            own = [self.token_to_id(token) for token in special]
            flat = ids.flat_values
            place = flat - self.vocabulary_size()
            found = tf.gather(own, tf.maximum(place, 0))
            ids = ids.with_flat_values(tf.where(place < 0, flat, found))
        return words.with_flat_values(ids).merge_dims(-2, -1)

    def _tokenize_tf(self, inputs):
        import tensorflow as tf

        inputs = tf.convert_to_tensor(inputs)
        if inputs.shape.rank == 0:
            return self.tokenize_in_graph(inputs[tf.newaxis])[0]
        return self.tokenize_in_graph(inputs)

    @functools.cached_property
    def _reference(self):
        reference = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                vocab=self._token_to_id_map,
                unk_token=self.oov_token,
                continuing_subword_prefix=self.suffix_indicator,
                max_input_chars_per_word=_MAX_CHARACTERS_PER_WORD,
            )
        )
        reference.normalizer = tokenizers.normalizers.BertNormalizer(
            lowercase=self.lowercase
        )
        reference.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        reference.add_special_tokens(list(self.special_tokens_in_texts))
        return reference

    def _tokenize_python(self, inputs):
        if isinstance(inputs, (str, bytes)):
            return self._tokenize_python([inputs])[0]
        texts = [
            text.decode("utf-8", "ignore") if isinstance(text, bytes) else text
            for text in np.asarray(inputs, dtype=object).ravel()
        ]
        return [row.ids for row in self._encode(texts)]

    def _encode(self, texts):
        try:
            return self._reference.encode_batch(texts, add_special_tokens=False)
        except TypeError as error:
            wrong = next(
                text
                for text in texts
                if not isinstance(text, str)
                or re.search("[\ud800-\udfff]", text)
            )
            raise TypeError(
                f"Texts must be strings without surrogates. Received: {wrong!a}"
            ) from error

    def tokenize_with_offsets(
        self, text: str
    ) -> tuple[list[int], list[int], list[int]]:
        """The ids of one text, and where each token starts and ends in it.

        Ends are exclusive and include removed accents. Starts and ends never
        decrease. Tokens may share characters, such as a Korean syllable.
        """
        (row,) = self._encode([text])
        starts, ends = [], []
        for start, end in row.offsets:
            if self.lowercase:
                while end < len(text) and not _without_accents(text[end]):
                    end += 1
            starts.append(start)
            ends.append(end)
        return row.ids, starts, ends

    def get_config(self) -> dict:
        kept = ["name", "trainable", "dtype", "config_file"]
        kept += ["lowercase", "special_tokens_in_strings"]
        config = super().get_config()
        return {name: config[name] for name in kept if name in config}
