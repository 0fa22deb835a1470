"""From questions and contexts to the inputs of a `FixedHeadSpanLabeler`.

Shape letters: B batch, N windows of one question, T sequence length.
"""

import keras
import keras_hub
import numpy as np

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.context_windows import Window, Windows
from keras_fixedhead.padding_mask import until_last
from keras_fixedhead.tokenizer import FixedHeadTokenizer

# [CLS], and [SEP] after the question and after the context.
_SPECIAL = 3


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadSpanLabelerPreprocessor(keras_hub.models.Preprocessor):
    """Tokenizes questions and contexts, and divides contexts into windows.

    A sequence is `[CLS]` question `[SEP]` part of the context `[SEP]`, of
    segment 0 up to the first `[SEP]` and 1 after it (Devlin et al. 2018,
    section 4.2). `windows` gives all sequences of one question, which is what
    answers are found with. Calling gives the first of each, with an operation
    of TensorFlow's graphs where there is one, else in Python: for `fit` and
    `predict` on contexts of one window.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int. The longest sequence.
        document_stride: int. How many tokens after a window the next one
            begins, at most.
        max_question_length: int. The most tokens of a question; the rest is
            cut off.
        **kwargs: `name`, `dtype` as in `keras.layers.Layer`.

    Call arguments:
        x: `(questions, contexts)`, two lists or tensors of B strings each.
            Without `y=None`, KerasHub takes a tuple of two for inputs and
            labels.
        y, sample_weight: returned as they are.

    Returns:
        A dictionary of int tensors `[B, sequence_length]`: `token_ids`,
        `padding_mask` (1 = real token) and `segment_ids`; with labels a tuple
        of it and these.

    Raises:
        ValueError: if a length is not positive, or the longest question
            leaves no room for a context; when called, if `x` is no tuple of
            two.

    Example:

    ```python
    preprocessor = labeler.preprocessor
    windows = preprocessor.windows("Who sleeps?", "A cat sleeps.")
    logits = labeler(preprocessor.pad(windows))
    ```
    """

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer

    def __init__(
        self,
        tokenizer,
        sequence_length=384,
        document_stride=128,
        max_question_length=64,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value in (
            ("document_stride", document_stride),
            ("max_question_length", max_question_length),
        ):
            if value < 1:
                raise ValueError(
                    f"`{name}` must be a positive integer. "
                    f"Received: {name}={value!r}"
                )
        if sequence_length <= max_question_length + _SPECIAL:
            raise ValueError(
                "`sequence_length` must leave room for a context beside "
                f"`max_question_length` and {_SPECIAL} tokens more. Received: "
                f"sequence_length={sequence_length!r}, "
                f"max_question_length={max_question_length!r}"
            )
        self.tokenizer = tokenizer
        self.packer = None
        self.sequence_length = sequence_length
        self.document_stride = document_stride
        self.max_question_length = max_question_length

    def build(self, input_shape):
        super().build(input_shape)
        # Not in `__init__`, where a tokenizer that is being loaded has no
        # vocabulary yet.
        self.packer = keras_hub.layers.MultiSegmentPacker(
            start_value=self.tokenizer.start_token_id,
            end_value=self.tokenizer.end_token_id,
            pad_value=self.tokenizer.pad_token_id,
            truncate="waterfall",
            sequence_length=self.sequence_length,
        )

    def call(self, x, y=None, sample_weight=None):
        if not isinstance(x, tuple) or len(x) != 2:
            raise ValueError(
                "`x` must be a tuple of questions and contexts. What is "
                "tokenized already is for the model itself: model(x). "
                f"Received: x={x!r}"
            )
        questions, contexts = x
        questions = _first(self.tokenizer(questions), self.max_question_length)
        token_ids, segment_ids = self.packer(
            (questions, self.tokenizer(contexts))
        )
        inputs = {
            "token_ids": token_ids,
            "padding_mask": until_last(
                token_ids != self.tokenizer.pad_token_id
            ),
            "segment_ids": segment_ids,
        }
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def windows(self, question, context):
        """All sequences of one question.

        A window begins where the one before did plus `document_stride` tokens,
        or plus what fits in, until one holds the last token. A context
        without tokens has one window.

        Args:
            question: str.
            context: str.

        Returns:
            A `keras_fixedhead.context_windows.Windows`.
        """
        question_ids, _, _ = self.tokenizer.tokenize_with_offsets(question)
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(context)
        num_cut = max(0, len(question_ids) - self.max_question_length)
        begin = [
            self.tokenizer.start_token_id,
            *question_ids[: self.max_question_length],
            self.tokenizer.end_token_id,
        ]
        room = self.sequence_length - len(begin) - 1
        rows, first = [], 0
        while True:
            part = [*ids[first : first + room], self.tokenizer.end_token_id]
            end = first + len(part) - 1
            rows.append(
                Window(
                    begin + part,
                    [0] * len(begin) + [1] * len(part),
                    [1] * (len(begin) + len(part)),
                    len(begin),
                    (first, end),
                )
            )
            if end == len(ids):
                return Windows(context, starts, ends, tuple(rows), num_cut)
            first += min(room, self.document_stride)

    def pad(self, windows, sequence_length=None):
        """Windows as the inputs of a model.

        Args:
            windows: a `Windows`, or any `Window`s, also of several questions.
            sequence_length: int. The length T of all rows, at least that of
                the longest; `None` for the preprocessor's own.

        Returns:
            A dictionary of int32 arrays `[N, T]`: `token_ids`, `padding_mask`
            and `segment_ids`.

        Raises:
            ValueError: if a window is longer than that.
        """
        length = sequence_length or self.sequence_length
        longest = max((len(row.token_ids) for row in windows), default=0)
        if longest > length:
            raise ValueError(
                "`sequence_length` must be at least that of the longest "
                f"window, {longest}. Received: "
                f"sequence_length={sequence_length!r}"
            )
        fill = {"token_ids": self.tokenizer.pad_token_id}
        inputs = {}
        for name in ("token_ids", "padding_mask", "segment_ids"):
            inputs[name] = np.full(
                (len(windows), length), fill.get(name, 0), "int32"
            )
            for padded, row in zip(inputs[name], windows):
                values = getattr(row, name)
                padded[: len(values)] = values
        return inputs

    def get_config(self):
        config = super().get_config()
        config.update(
            sequence_length=self.sequence_length,
            document_stride=self.document_stride,
            max_question_length=self.max_question_length,
        )
        return config


def _first(rows, count):
    """The first values of each row, of lists or of a ragged tensor."""
    if isinstance(rows, list):
        return [row[:count] for row in rows]
    return rows[:, :count]
