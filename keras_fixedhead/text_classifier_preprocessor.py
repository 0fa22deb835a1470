"""From texts, or pairs of texts, to the inputs of a `FixedHeadTextClassifier`.

Shape letters: B batch, T sequence length.
"""

import keras
import keras_hub

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.padding_mask import until_last
from keras_fixedhead.tokenizer import FixedHeadTokenizer

_TRUNCATE = ("round_robin", "waterfall")


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextClassifierPreprocessor(
    keras_hub.models.TextClassifierPreprocessor
):
    """Tokenizes, packs one or two texts, truncates and pads.

    A text becomes `[CLS] text [SEP]`, a pair `[CLS] first [SEP] second [SEP]`
    with segment ids 0 up to the first `[SEP]` and 1 after it (Devlin et al.
    2018, section 3).

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int. The longest sequence, `[CLS]` and `[SEP]`
            included; longer texts are truncated.
        truncate: str. What is kept of a pair that is too long:
            `"round_robin"`, a token of each text in turn, or `"waterfall"`,
            the first text before the second.
        **kwargs: as in `keras_hub.models.TextClassifierPreprocessor`.

    Call arguments:
        x: a string, a list or tensor of B strings, or a tuple of two such
            for pairs. Without `y=None`, KerasHub takes a tuple of two for
            inputs and labels.
        y, sample_weight: returned as they are.

    Returns:
        A dictionary of int tensors `[B, sequence_length]`: `token_ids`,
        `padding_mask` (1 = real token) and `segment_ids`; with `y`, a tuple
        of this and `y`.

    Raises:
        ValueError: if there is no such way to truncate.
    """

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer

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
        inputs["padding_mask"] = until_last(inputs["padding_mask"])
        return keras.utils.pack_x_y_sample_weight(inputs, *labels)

    def pad_to_longest(self, text, second=None, sequence_length=None):
        """The same as calling, padded only to the longest row.

        TensorFlow graph operations, for `tf.data` and exported signatures.

        Args:
            text: string `tf.Tensor` `[B]`, the first texts.
            second: string `tf.Tensor` `[B]`, the second texts of pairs, or
                `None`.
            sequence_length: int or `None`. A limit below the model's own.

        Returns:
            A dictionary of int32 tensors `[B, T]`, T the length of the
            longest row, at most `sequence_length`.

        Raises:
            ValueError: if the limit leaves no room for a token beside the
                special ones.
        """
        import tensorflow as tf

        text = tf.convert_to_tensor(text)
        texts = [text] if second is None else [text, second]
        limit = min(
            self.sequence_length, sequence_length or self.sequence_length
        )
        room = limit - 1 - len(texts)  # beside [CLS] and one [SEP] each
        if room < 1:
            raise ValueError(
                f"`sequence_length` must be over {1 + len(texts)}, the "
                f"special tokens. Received: {limit}"
            )
        rows = [
            tf.cast(self.tokenizer.tokenize_in_graph(part), "int32")
            for part in texts
        ]
        if len(rows) == 1:
            rows = [rows[0][:, :room]]
        else:
            lengths = _shortened(
                *(part.row_lengths() for part in rows), room, self.truncate
            )
            # Not tensorflow-text's trimmers: these operations every server
            # has.
            rows = [
                tf.gather(
                    part.values,
                    tf.ragged.range(
                        part.row_starts(), part.row_starts() + length
                    ),
                )
                for part, length in zip(rows, lengths)
            ]
        column = tf.ones((tf.shape(text)[0], 1), "int32")
        pieces = [column * self.tokenizer.start_token_id]
        segments = [tf.zeros_like(column)]
        for number, part in enumerate(rows):
            pieces += [part, column * self.tokenizer.end_token_id]
            segments += [tf.ones_like(part) * number, column * number]
        ids = tf.concat(pieces, axis=1)
        return {
            "token_ids": ids.to_tensor(
                default_value=self.tokenizer.pad_token_id
            ),
            # An id of [PAD] inside a text is a real token, hence no
            # comparison.
            "padding_mask": tf.ones_like(ids).to_tensor(),
            "segment_ids": tf.concat(segments, axis=1).to_tensor(),
        }


def _shortened(first, second, room, truncate):
    """How much is kept of the two texts of each pair.

    Args:
        first, second: int64 `tf.Tensor` `[B]`, their lengths.
        room: int. The most tokens of both together.
        truncate: str.

    Returns:
        Two int64 `tf.Tensor` `[B]`, as KerasHub's `MultiSegmentPacker` cuts.
    """
    import tensorflow as tf

    if truncate == "round_robin":
        # A half, the larger one, or what the second text leaves.
        most = tf.maximum(room - second, (room + 1) // 2)
    else:
        most = room
    first = tf.minimum(first, most)
    return first, tf.minimum(second, room - first)
