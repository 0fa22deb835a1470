"""A label for each token: named entities, parts of speech.

Shape letters: B batch, T sequence length, N windows, C classes.
"""

import typing
from collections.abc import Sequence
from typing import Any, Self

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead.attention_checks import positive_int
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import Tensor, Tensors, kernel_initializer
from keras_fixedhead.task import FixedHeadTask, pad_rows
from keras_fixedhead.text_classifier import (
    FixedHeadTextClassifierPreprocessor,
    check_labels,
)


class WordWindow(typing.NamedTuple):
    """One sequence: `[CLS]` some words of a sentence `[SEP]`.

    `token_ids` has no padding. `places` has an entry for each word: where its
    first token is in the sequence, or -1 for a word without tokens.
    """

    token_ids: list[int]
    places: list[int]


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTokenClassifierPreprocessor(FixedHeadTextClassifierPreprocessor):
    """Tokenizes texts, and sentences that are already divided into words.

    Calling packs texts, `[CLS] text [SEP]`, for `predict` and exported
    signatures. `windows` packs the words of a data set, whose labels belong to
    the first token of each word (Devlin et al. 2018, section 5.3).

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int. The longest sequence, `[CLS]` and `[SEP]`
            included; longer texts are truncated.
        **kwargs: as in `FixedHeadTextClassifierPreprocessor`.

    Call arguments:
        x: a string, or a list or tensor of B strings.
        y, sample_weight: returned as they are.

    Returns:
        A dictionary of int tensors `[B, sequence_length]`: `token_ids`,
        `padding_mask` (1 = real token) and `segment_ids`; with `y`, a tuple
        of the dictionary and `y`.
    """

    def windows(self, words: Sequence[str]) -> list[WordWindow]:
        """Packs the words of one sentence.

        Each window has as many whole words as fit; only a word longer than a
        window is truncated. A sentence without words has one window.
        """
        room = self.room(None, 1)
        start, end = self.tokenizer.start_token_id, self.tokenizer.end_token_id
        rows, ids = [], [start]
        places: list[int] = []
        for pieces in self.tokenizer(list(words)) if words else []:
            pieces = list(pieces[:room])
            if len(ids) + len(pieces) > room + 1:
                rows.append(WordWindow([*ids, end], places))
                ids, places = [start], []
            places.append(len(ids) if pieces else -1)
            ids += pieces
        return [*rows, WordWindow([*ids, end], places)]

    def pad(self, windows: Sequence[WordWindow]) -> dict[str, np.ndarray]:
        """Windows as the model's inputs, int32 arrays `[N, T]`.

        T is the length of the longest window.
        """
        rows = [window.token_ids for window in windows]
        shape = len(rows), max(map(len, rows), default=0)
        real = pad_rows([[1] * len(row) for row in rows], shape)
        return {
            "token_ids": pad_rows(rows, shape, self.tokenizer.pad_token_id),
            "padding_mask": real,
            "segment_ids": np.zeros_like(real),
        }


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTokenClassifier(FixedHeadTask, keras_hub.models.Task):
    """Labels the tokens of texts with a `FixedHeadBackbone`.

    BERT's head for named entities (Devlin et al. 2018, section 5.3): dropout
    and a dense layer on each token.

    Args:
        backbone: a `FixedHeadBackbone`.
        num_classes: int. C, at least 2.
        preprocessor: a `FixedHeadTokenClassifierPreprocessor` or `None`.
        dropout: float. Dropout rate of the head's input.
        labels: list of C str, the names of the classes in the order of the
            logits, or `None`.
        **kwargs: `name`, `trainable`, as in `keras.Model`.

    Call arguments:
        inputs: the backbone's inputs, a dictionary of int tensors `[B, T]`.

    Returns:
        Logits `[B, T, C]`, float32 unless the model computes in float64; 0 at
        padding.

    Raises:
        ValueError: if `num_classes` is below 2, or `labels` are not
            `num_classes` different names.

    Example:

    ```python
    classifier = FixedHeadTokenClassifier.from_preset(
        "runs/novels/train/preset", num_classes=2, labels=["O", "B-person"]
    )
    [window] = classifier.preprocessor.windows(["Ann", "sleeps", "."])
    logits = classifier(classifier.preprocessor.pad([window]))
    classes = ops.argmax(logits, axis=-1)[0]
    names = [classifier.labels[classes[place]] for place in window.places]
    ```
    """

    preprocessor_cls = FixedHeadTokenClassifierPreprocessor

    def __init__(
        self,
        backbone: FixedHeadBackbone,
        num_classes: int,
        preprocessor: FixedHeadTokenClassifierPreprocessor | None = None,
        dropout: float = 0.1,
        labels: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        positive_int("num_classes", num_classes, least=2)
        check_labels(num_classes, labels)

        # === Layers ===
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="classifier_dropout"
        )
        self.output_dense = keras.layers.Dense(
            num_classes,
            kernel_initializer=kernel_initializer(),
            dtype=backbone.dtype_policy,
            name="logits",
        )

        # === Config ===
        self.num_classes = num_classes
        self.dropout = dropout
        self.labels = None if labels is None else list(labels)

        # === Functional Model ===
        inputs = backbone.input
        x = self.output_dropout(backbone(inputs)["sequence_output"])
        outputs = _at_real_tokens(self.output_dense(x), inputs["padding_mask"])
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    @classmethod
    def from_preset(cls, preset: str, *args: Any, **kwargs: Any) -> Self:
        if "num_classes" in kwargs:
            # KerasHub then makes a new head, which saved labels do not fit.
            kwargs.setdefault("labels", None)
        return super().from_preset(preset, *args, **kwargs)

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "auto",
        loss: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Configures `fit` and `evaluate`.

        Labels are int tensors `[B, T]`: a class for the first token of each
        word, and -1 elsewhere.

        Arguments are those of `keras.Model.compile`. `optimizer="auto"` is
        Adam with a learning rate of 5e-5; `loss="auto"` is the cross entropy
        of the labels that are not -1.
        """
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(5e-5)
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, ignore_class=-1
            )
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def classify_packed(
        self, inputs: Tensors, training: bool = False, fixed_size: bool = False
    ) -> Tensor:
        """The same logits, computed on real tokens only.

        For the arguments see `FixedHeadBackbone.encode_packed`.
        """
        x, packing = self.backbone.encode_packed(inputs, training, fixed_size)
        logits = self.output_dense(self.output_dropout(x, training=training))
        return _at_real_tokens(packing.pad(logits), inputs["padding_mask"])

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "dropout": self.dropout,
            "labels": self.labels,
        }


def _at_real_tokens(logits, padding_mask):
    """Logits `[B, T, C]` in float32 or float64, 0 at padding."""
    dtype = keras.backend.result_type(logits.dtype, "float32")
    real = ops.cast(padding_mask, dtype)[:, :, None]
    return ops.cast(logits, dtype) * real
