"""Extractive question answering: where in a text an answer starts and ends.

Shape letters: B batch, N windows of one question, T sequence length, P real
tokens of a packed batch.
"""

from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead.attention_checks import positive_int
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.context_windows import ContextWindows, Window
from keras_fixedhead.layer_config import (
    Shape,
    Tensors,
    kernel_initializer,
)
from keras_fixedhead.task import FixedHeadPreprocessor, FixedHeadTask, pad_rows
from keras_fixedhead.tokenizer import FixedHeadTokenizer

# [CLS], and [SEP] after the question and after the context.
_SPECIAL = 3


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadSpanLabelerPreprocessor(FixedHeadPreprocessor):
    """Tokenizes questions and contexts, and divides contexts into windows.

    A sequence is `[CLS]` question `[SEP]` part of the context `[SEP]`, of
    segment 0 up to the first `[SEP]` and 1 after it (Devlin et al. 2018,
    section 4.2). `windows` returns all sequences of one question, to find
    answers with. Calling returns the first sequence of each question, in
    TensorFlow's graphs too: for `fit` and `predict` on contexts of one window.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: the most tokens of a sequence.
        document_stride: the most tokens between the starts of two windows.
        max_question_length: the most tokens of a question; longer ones are
            truncated.
        **kwargs: `name`, `dtype` as in `keras.layers.Layer`.

    Call arguments:
        x: `(questions, contexts)`, two lists or tensors of B strings each.
            Pass `y=None` too: KerasHub otherwise takes a tuple of two for
            inputs and labels.
        y, sample_weight: returned as they are.

    Returns:
        A dictionary of int tensors `[B, sequence_length]`: `token_ids`,
        `padding_mask` (1 = real token) and `segment_ids`; with labels a tuple
        of the dictionary and the labels.

    Raises:
        ValueError: if a length is not positive, or the longest question
            leaves no room for a context; when called, if `x` is not a tuple
            of two.

    For an example see `FixedHeadSpanLabeler`.
    """

    def __init__(
        self,
        tokenizer: FixedHeadTokenizer,
        sequence_length: int = 384,
        document_stride: int = 128,
        max_question_length: int = 64,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        positive_int("document_stride", document_stride)
        positive_int("max_question_length", max_question_length)
        if sequence_length <= max_question_length + _SPECIAL:
            raise ValueError(
                "`sequence_length` must leave room for a context beside "
                f"`max_question_length` and {_SPECIAL} special tokens. "
                f"Received: sequence_length={sequence_length!r}, "
                f"max_question_length={max_question_length!r}"
            )
        self.tokenizer = tokenizer
        self.packer: Any = None  # until `build`
        self.sequence_length = sequence_length
        self.document_stride = document_stride
        self.max_question_length = max_question_length

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        # In `__init__`, a tokenizer that is loaded has no vocabulary yet.
        self.packer = keras_hub.layers.MultiSegmentPacker(
            start_value=self.tokenizer.start_token_id,
            end_value=self.tokenizer.end_token_id,
            pad_value=self.tokenizer.pad_token_id,
            truncate="waterfall",
            sequence_length=self.sequence_length,
        )

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if not isinstance(x, tuple) or len(x) != 2:
            raise ValueError(
                "`x` must be a tuple of questions and contexts. Pass "
                "tokenized inputs to the model itself: model(x). "
                f"Received: x={x!r}"
            )
        questions, contexts = x
        questions = self.tokenizer(questions)
        if isinstance(questions, list):
            questions = [row[: self.max_question_length] for row in questions]
        else:
            questions = questions[:, : self.max_question_length]
        token_ids, segment_ids = self.packer(
            (questions, self.tokenizer(contexts))
        )
        inputs = {
            "token_ids": token_ids,
            "padding_mask": self.padding_mask(token_ids),
            "segment_ids": segment_ids,
        }
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def windows(self, question: str, context: str) -> ContextWindows:
        """All sequences of one question about a context.

        Windows begin `document_stride` tokens apart, or as many as fit in,
        until one holds the last token. A context without tokens has one
        window.
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
            row = Window(
                token_ids=begin + part,
                segment_ids=[0] * len(begin) + [1] * len(part),
                padding_mask=[1] * (len(begin) + len(part)),
                context_start=len(begin),
                token_range=(first, end),
            )
            rows.append(row)
            if end == len(ids):
                break
            first += min(room, self.document_stride)
        return ContextWindows(context, starts, ends, tuple(rows), num_cut)

    def pad(
        self, windows: Sequence[Window], sequence_length: int | None = None
    ) -> dict[str, np.ndarray]:
        """N windows as inputs of a model, int32 arrays `[N, T]`.

        T is `sequence_length`, by default the preprocessor's.
        """
        length = sequence_length or self.sequence_length
        longest = max((len(row.token_ids) for row in windows), default=0)
        if longest > length:
            raise ValueError(
                "`sequence_length` must be at least the length of the longest "
                f"window, {longest}. Received: "
                f"sequence_length={sequence_length!r}"
            )
        shape = (len(windows), length)
        return {
            name: pad_rows(
                [getattr(row, name) for row in windows],
                shape,
                self.tokenizer.pad_token_id if name == "token_ids" else 0,
            )
            for name in ("token_ids", "padding_mask", "segment_ids")
        }

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "sequence_length": self.sequence_length,
            "document_stride": self.document_stride,
            "max_question_length": self.max_question_length,
        }


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadSpanLabeler(FixedHeadTask, keras_hub.models.Task):
    """Finds answers in contexts with a `FixedHeadBackbone`.

    BERT's head for SQuAD (Devlin et al. 2018, section 4.2): the product of
    each token with one vector for starts and one for ends.

    Args:
        backbone: a `FixedHeadBackbone`.
        preprocessor: a `FixedHeadSpanLabelerPreprocessor` or `None`.
        dropout: dropout rate of the head's input.
        **kwargs: `name`, `trainable`, as in `keras.Model`.

    Call arguments:
        inputs: the backbone's inputs, a dictionary of int tensors `[B, T]`.

    Returns:
        A dictionary of logits `[B, T]`, `start` and `end`, float32 unless the
        model computes in float64; -1e9 at padding.
        `keras_fixedhead.context_windows.decode` turns them into answers.

    Example:

    ```python
    labeler = FixedHeadSpanLabeler.from_preset("runs/novels/train/preset")
    windows = labeler.preprocessor.windows("Who sleeps?", "A cat sleeps.")
    logits = labeler(labeler.preprocessor.pad(windows))
    answers = context_windows.decode(logits["start"], logits["end"], windows)
    ```
    """

    preprocessor_cls = FixedHeadSpanLabelerPreprocessor

    def __init__(
        self,
        backbone: FixedHeadBackbone,
        preprocessor: FixedHeadSpanLabelerPreprocessor | None = None,
        dropout: float = 0.1,
        **kwargs: Any,
    ):
        # === Layers ===
        self.span_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="span_dropout"
        )
        self.span_dense = keras.layers.Dense(
            2,
            kernel_initializer=kernel_initializer(),
            dtype=backbone.dtype_policy,
            name="span_dense",
        )

        # === Config ===
        self.dropout = dropout

        # === Functional Model ===
        inputs = backbone.input
        x = self.span_dropout(backbone(inputs)["sequence_output"])
        outputs = _outputs(self.span_dense(x), inputs["padding_mask"])
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    def _limit_sequence_length(self, longest):
        # Thirds and sixths, as 128 and 64 of 384 tokens.
        self.preprocessor = FixedHeadSpanLabelerPreprocessor(
            self.preprocessor.tokenizer,
            sequence_length=longest,
            document_stride=max(1, longest // 3),
            max_question_length=max(1, longest // 6),
        )

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "auto",
        loss: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Configures `fit` and `evaluate`.

        Labels are a dictionary of int tensors `[B]`, `start` and `end`: the
        positions of the first and the last token of the answer.

        Arguments are those of `keras.Model.compile`. `optimizer="auto"` is
        Adam with a learning rate of 5e-5; `loss="auto"` is the mean of the
        cross entropies of starts and of ends, as in BERT's `run_squad.py`.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(5e-5)
        if loss == "auto":
            entropy = keras.losses.SparseCategoricalCrossentropy
            loss = {
                name: entropy(from_logits=True) for name in ("start", "end")
            }
            kwargs.setdefault("loss_weights", {"start": 0.5, "end": 0.5})
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def label_packed(
        self, inputs: Tensors, training: bool = False, fixed_size: bool = False
    ) -> Tensors:
        """The same logits, computed on real tokens only.

        For the arguments see `FixedHeadBackbone.encode_packed`.
        """
        x, packing = self.backbone.encode_packed(inputs, training, fixed_size)
        logits = self.span_dense(self.span_dropout(x, training=training))
        return _outputs(packing.pad(logits), inputs["padding_mask"])

    def get_config(self) -> dict:
        return {**super().get_config(), "dropout": self.dropout}


def _outputs(logits, padding_mask):
    """Logits `[B, T, 2]` as a dictionary, -1e9 at padding."""
    dtype = keras.backend.result_type(logits.dtype, "float32")
    logits, real = ops.cast(logits, dtype), ops.cast(padding_mask, "bool")
    return {
        "start": ops.where(real, logits[:, :, 0], -1e9),
        "end": ops.where(real, logits[:, :, 1], -1e9),
    }
