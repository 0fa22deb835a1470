"""From texts, or pairs of texts, to the inputs of a `FixedHeadTextClassifier`.

Shape letters: B batch, T sequence length.
"""

import keras
import keras_hub

from keras_fixedhead.preprocessor import FixedHeadPreprocessor

_TRUNCATE = ("round_robin", "waterfall")


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextClassifierPreprocessor(
    FixedHeadPreprocessor, keras_hub.models.TextClassifierPreprocessor
):
    """Tokenizes, packs one or two texts, truncates and pads.

    A text becomes `[CLS] text [SEP]`, a pair `[CLS] first [SEP] second [SEP]`
    with segment ids 0 up to the first `[SEP]` and 1 after it (Devlin et al.
    2018, section 3).

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int. The longest sequence, `[CLS]` and `[SEP]`
            included; longer texts are truncated.
        truncate: str. How to shorten a pair: `"round_robin"` keeps a token
            of each text in turn, `"waterfall"` the first text before the
            second.
        **kwargs: as in `keras_hub.models.TextClassifierPreprocessor`.

    Call arguments:
        x: a string, a list or tensor of B strings, or a tuple of two of
            these for pairs. Pass `y=None` with a tuple, which KerasHub
            otherwise takes for inputs and labels.
        y, sample_weight: returned as they are.

    Returns:
        A dictionary of int tensors `[B, sequence_length]`: `token_ids`,
        `padding_mask` (1 = real token) and `segment_ids`; with `y`, a tuple
        of the dictionary and `y`.
    """

    def __init__(
        self, tokenizer, sequence_length=128, truncate="round_robin", **kwargs
    ):
        if truncate not in _TRUNCATE:
            raise ValueError(
                f"`truncate` must be one of {', '.join(_TRUNCATE)}. "
                f"Received: truncate={truncate!r}"
            )
        super().__init__(
            tokenizer,
            sequence_length=sequence_length,
            truncate=truncate,
            **kwargs,
        )

    def call(self, x, y=None, sample_weight=None):
        inputs, *labels = keras.utils.unpack_x_y_sample_weight(
            super().call(x, y=y, sample_weight=sample_weight)
        )
        inputs["padding_mask"] = self.padding_mask(inputs["token_ids"])
        return keras.utils.pack_x_y_sample_weight(inputs, *labels)

    def pad_to_longest(self, text, second=None, sequence_length=None):
        """The same as calling, padded only to the longest row.

        TensorFlow graph operations, for `tf.data` and exported signatures.

        Takes one or two string `tf.Tensor` `[B]`, for pairs, and optionally a
        `sequence_length` below the preprocessor's.
        """
        import tensorflow as tf

        texts = [text] if second is None else [text, second]
        room = self.room(sequence_length, len(texts))
        rows = [
            tf.cast(self.tokenizer.tokenize_in_graph(part), "int32")
            for part in map(tf.convert_to_tensor, texts)
        ]
        if len(rows) == 1:
            return self.pack_in_graph([rows[0][:, :room]])
        lengths = _shortened(
            *(part.row_lengths() for part in rows), room, self.truncate
        )
        # Not tensorflow-text's trimmers: every server has these operations.
        return self.pack_in_graph(
            [
                tf.gather(
                    part.values,
                    tf.ragged.range(
                        part.row_starts(), part.row_starts() + length
                    ),
                )
                for part, length in zip(rows, lengths)
            ]
        )


def _shortened(first, second, room, truncate):
    """The lengths of both texts in a pair with room for `room` tokens.

    Takes and returns int64 `tf.Tensor` `[B]`; truncates like KerasHub's
    `MultiSegmentPacker`.
    """
    import tensorflow as tf

    if truncate == "round_robin":
        # The larger half, or the rest that the second text leaves.
        most = tf.maximum(room - second, (room + 1) // 2)
    else:
        most = room
    first = tf.minimum(first, most)
    return first, tf.minimum(second, room - first)
