"""Extractive question answering: where in a text an answer starts and ends.

Shape letters: B batch, N windows of one question, T sequence length.
"""

from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.context_windows import ContextWindows, Window
from keras_fixedhead.layer_config import Tensors, at_least_float32, dense
from keras_fixedhead.task import FixedHeadTask
from keras_fixedhead.text_classifier import FixedHeadTextClassifierPreprocessor
from keras_fixedhead.tokenizer import FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadSpanLabelerPreprocessor(FixedHeadTextClassifierPreprocessor):
    """Tokenizes questions and contexts, and divides contexts into windows.

    A sequence is `[CLS]` question `[SEP]` part of the context `[SEP]`.
    `windows` returns all sequences of one question, to find answers with.
    Calling with a tuple of questions and contexts returns the first sequence of
    each question: for `fit` and `predict` on contexts of one window.

    Args:
        sequence_length: the most tokens of a sequence, with room for a context
            beside the longest question and 3 special tokens.
        document_stride: the most tokens between the starts of two windows.
        max_question_length: the most tokens of a question; longer ones are
            truncated.

    For the rest see `FixedHeadTextClassifierPreprocessor`.
    """

    def __init__(
        self,
        tokenizer: FixedHeadTokenizer,
        sequence_length: int = 384,
        document_stride: int = 128,
        max_question_length: int = 64,
        **kwargs: Any,
    ):
        super().__init__(tokenizer, sequence_length, "waterfall", **kwargs)
        positive_int("document_stride", document_stride)
        positive_int("max_question_length", max_question_length)
        if self.room(None, 2) <= max_question_length:
            raise ValueError(
                "`sequence_length` must leave room for a context. Received: "
                f"sequence_length={sequence_length!r}, "
                f"max_question_length={max_question_length!r}"
            )
        self.document_stride = document_stride
        self.max_question_length = max_question_length

    def _cut(self, rows):
        if len(rows) != 2:
            raise ValueError(
                "`x` must be a tuple of questions and contexts. "
                f"Received: {len(rows)} texts"
            )
        questions, contexts = rows
        most = self.max_question_length
        if isinstance(questions, list):
            return [row[:most] for row in questions], contexts
        return questions[:, :most], contexts

    def windows(self, question: str, context: str) -> ContextWindows:
        """All sequences of one question about a context.

        Windows begin `document_stride` tokens apart, or as many as fit in,
        until one holds the last token.
        """
        question_ids, _, _ = self.tokenizer.tokenize_with_offsets(question)
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(context)
        begin = [
            self.tokenizer.start_token_id,
            *question_ids[: self.max_question_length],
            self.tokenizer.end_token_id,
        ]
        room = self.sequence_length - len(begin) - 1
        rows, first, end = [], 0, -1
        while end < len(ids):
            end = min(first + room, len(ids))
            row = [*begin, *ids[first:end], self.tokenizer.end_token_id]
            rows.append(Window(row, len(begin), (first, end)))
            first += min(room, self.document_stride)
        num_cut = max(0, len(question_ids) - self.max_question_length)
        return ContextWindows(context, starts, ends, tuple(rows), num_cut)

    def pad(
        self, windows: Sequence[Window], sequence_length: int | None = None
    ) -> dict[str, np.ndarray]:
        """N windows as inputs of a model, int32 arrays `[N, T]`.

        T is `sequence_length`, by default the preprocessor's.
        """
        return self.pad_rows(
            [window.token_ids for window in windows],
            (len(windows), sequence_length or self.sequence_length),
            [window.context_start for window in windows],
        )

    def get_config(self) -> dict:
        config = super().get_config()
        del config["truncate"]  # is always "waterfall"
        return {
            **config,
            "document_stride": self.document_stride,
            "max_question_length": self.max_question_length,
        }


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadSpanLabeler(FixedHeadTask, keras_hub.models.Task):
    """Finds answers in contexts with a `FixedHeadBackbone`.

    BERT's head for SQuAD (Devlin et al. 2018, section 4.2): the product of
    each token with one vector for starts and one for ends.

    Args:
        dropout: dropout rate of the head's input.

    Call arguments:
        inputs: the backbone's inputs, a dictionary of int tensors `[B, T]`.

    Returns:
        A dictionary of logits `[B, T]`, `start` and `end`, float32 unless the
        model computes in float64; -1e9 at padding.

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
        # === Config ===
        self.dropout = dropout

        # === Layers ===
        self.span_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="span_dropout"
        )
        self.span_dense = dense(2, "span_dense", backbone.dtype_policy)

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
        """As `keras.Model.compile`, for labels `start` and `end`, int `[B]`.

        `optimizer="auto"` is Adam with a learning rate of 5e-5; `loss="auto"`
        is the mean of the cross entropies of starts and of ends.
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
        """The same logits, of real tokens only; see `encode_packed`."""
        x, packing = self.backbone.encode_packed(inputs, training, fixed_size)
        logits = self.span_dense(self.span_dropout(x, training=training))
        return _outputs(packing.pad(logits), inputs["padding_mask"])


def _outputs(logits, padding_mask):
    logits, real = at_least_float32(logits), ops.cast(padding_mask, "bool")
    return {
        name: ops.where(real, logits[:, :, i], -1e9)
        for i, name in enumerate(("start", "end"))
    }
