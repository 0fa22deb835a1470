"""A label for each token: named entities, parts of speech.

Shape letters: B batch, T sequence length, N windows, C classes.
"""

import typing
from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import (
    Tensor,
    Tensors,
    at_least_float32,
    dense,
)
from keras_fixedhead.task import FixedHeadTask
from keras_fixedhead.text_classifier import (
    FixedHeadTextClassifierPreprocessor,
    checked_labels,
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

    Calling packs texts, as in `FixedHeadTextClassifierPreprocessor`. `windows`
    packs the words of a data set, whose labels belong to the first token of
    each word (Devlin et al. 2018, section 5.3).
    """

    def windows(self, words: Sequence[str]) -> list[WordWindow]:
        """Packs the words of one sentence.

        Each window has as many whole words as fit; only a word longer than a
        window is truncated.
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
        """Windows as the model's inputs, int32 arrays `[N, T]`."""
        rows = [window.token_ids for window in windows]
        return self.pad_rows(rows, (len(rows), max(map(len, rows), default=0)))


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTokenClassifier(FixedHeadTask, keras_hub.models.Task):
    """Labels the tokens of texts with a `FixedHeadBackbone`.

    BERT's head for named entities (Devlin et al. 2018, section 5.3): dropout
    and a dense layer on each token. The arguments are those of
    `FixedHeadTextClassifier`, without `pooling_mode`.

    Returns:
        Logits `[B, T, C]`, float32 unless the model computes in float64; 0 at
        padding.

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
        # === Config ===
        self.num_classes = num_classes
        self.dropout = dropout
        self.labels = checked_labels(num_classes, labels)

        # === Layers ===
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=backbone.dtype_policy, name="classifier_dropout"
        )
        self.output_dense = dense(num_classes, "logits", backbone.dtype_policy)

        # === Functional Model ===
        inputs = backbone.input
        x = self.output_dropout(backbone(inputs)["sequence_output"])
        outputs = _at_real_tokens(self.output_dense(x), inputs["padding_mask"])
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "auto",
        loss: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, for labels int `[B, T]`: a class or -1.

        `optimizer="auto"` is Adam with a learning rate of 5e-5; `loss="auto"`
        is the cross entropy of the labels but -1.
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
        """The same logits, of real tokens only; see `encode_packed`."""
        x, packing = self.backbone.encode_packed(inputs, training, fixed_size)
        logits = self.output_dense(self.output_dropout(x, training=training))
        return _at_real_tokens(packing.pad(logits), inputs["padding_mask"])


def _at_real_tokens(logits, padding_mask):
    logits = at_least_float32(logits)
    return logits * ops.cast(padding_mask, logits.dtype)[:, :, None]
