"""Classification of texts or pairs of texts: the encoder, pooled, and a head.

Shape letters: B batch, T sequence length, D embedding size (`hidden_dim`),
C classes.
"""

import keras
import keras_hub
from keras import ops

from keras_fixedhead.attention_checks import positive_int
from keras_fixedhead.backbone import kernel_initializer
from keras_fixedhead.task import FixedHeadTask
from keras_fixedhead.text_classifier_preprocessor import (
    FixedHeadTextClassifierPreprocessor,
)
from keras_fixedhead.text_embedder import pool, refuse_blind_token


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextClassifier(FixedHeadTask, keras_hub.models.TextClassifier):
    """Classifies texts, or pairs of texts, with a `FixedHeadBackbone`.

    BERT's head (Devlin et al. 2018, section 4.1): the pooled vector, dropout
    and a dense layer. With `pooling_mode="cls"` and a backbone with pooler,
    the pooled vector is the backbone's. Otherwise it is pooled as in
    `FixedHeadTextEmbedder`, followed by a dense layer with tanh.

    Args:
        backbone: a `FixedHeadBackbone`.
        num_classes: int. C, at least 2.
        preprocessor: a `FixedHeadTextClassifierPreprocessor` or `None`.
        pooling_mode: `"mean"`, `"cls"` or `"max"`.
        dropout: float. Dropout rate of the pooled vector.
        labels: list of C str, the names of the classes in the order of the
            logits, or `None`.
        **kwargs: as in `keras_hub.models.TextClassifier`.

    Call arguments:
        inputs: the backbone's inputs, a dictionary of int tensors `[B, T]`.

    Returns:
        Logits `[B, C]`, float32 unless the model computes in float64.

    Raises:
        ValueError: if `pooling_mode` is unknown, or `"cls"` with a causal
            backbone, `num_classes` is below 2, or `labels` are not
            `num_classes` different names.

    Example:

    ```python
    classifier = FixedHeadTextClassifier.from_preset(
        "runs/novels/train/preset",
        num_classes=3,
        labels=["entailment", "neutral", "contradiction"],
    )
    classifier.fit((premises, hypotheses), numbers_of_labels)
    # `predict` would take the tuple for inputs and labels.
    inputs = classifier.preprocessor((premises, hypotheses), y=None)
    logits = classifier(inputs)
    ```
    """

    preprocessor_cls = FixedHeadTextClassifierPreprocessor

    def __init__(
        self,
        backbone,
        num_classes,
        preprocessor=None,
        pooling_mode="cls",
        dropout=0.1,
        labels=None,
        **kwargs,
    ):
        refuse_blind_token(backbone, pooling_mode)
        positive_int("num_classes", num_classes, least=2)
        check_labels(num_classes, labels)
        # The head is small: float32 costs nothing.
        dtype = keras.backend.result_type(backbone.compute_dtype, "float32")

        # === Layers ===
        self.pooled_dense = (
            None
            if backbone.pooler and pooling_mode == "cls"
            else keras.layers.Dense(
                backbone.hidden_dim,
                kernel_initializer=kernel_initializer(),
                activation="tanh",
                dtype=dtype,
                name="pooled_dense",
            )
        )
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=dtype, name="classifier_dropout"
        )
        self.output_dense = keras.layers.Dense(
            num_classes,
            kernel_initializer=kernel_initializer(),
            dtype=dtype,
            name="logits",
        )

        # === Config ===
        self.num_classes = num_classes
        self.pooling_mode = pooling_mode
        self.dropout = dropout
        self.labels = None if labels is None else list(labels)

        # === Functional Model ===
        inputs = backbone.input
        encoded = backbone(inputs)
        if self.pooled_dense is None:
            pooled = encoded["pooled_output"]
        else:
            pooled = self.pooled_dense(
                pool(
                    encoded["sequence_output"],
                    inputs["padding_mask"],
                    pooling_mode,
                )
            )
        outputs = self.output_dense(self.output_dropout(pooled))
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    @classmethod
    def from_preset(cls, preset, *args, **kwargs):
        if "num_classes" in kwargs:
            # KerasHub then makes a new head, which saved labels do not fit.
            kwargs.setdefault("labels", None)
        return super().from_preset(preset, *args, **kwargs)

    def classify_packed(self, inputs, training=False, fixed_size=False):
        """The same logits, computed on real tokens only.

        With `pooling_mode="cls"` the last block computes the first tokens
        only. For the arguments see `FixedHeadBackbone.encode_packed`.
        """
        if self.pooling_mode == "cls":
            first = ops.zeros_like(inputs["token_ids"][:, :1])
            pooled, _ = self.backbone.encode_positions(
                inputs, first, training=training, fixed_size=fixed_size
            )  # [B, D]
        else:
            x, packing = self.backbone.encode_packed(
                inputs, training, fixed_size
            )
            pooled = pool(
                packing.pad(x), inputs["padding_mask"], self.pooling_mode
            )
        dense = self.pooled_dense
        if dense is None:
            dense = self.backbone.pooled_dense
        pooled = self.output_dropout(dense(pooled), training=training)
        return self.output_dense(pooled)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "pooling_mode": self.pooling_mode,
            "dropout": self.dropout,
            "labels": self.labels,
        }


def check_labels(num_classes, labels) -> None:
    """Raises unless `labels` are `None` or a different name of each class."""
    if labels is not None and (
        isinstance(labels, str)
        or not all(isinstance(label, str) for label in labels)
        or len(set(labels)) != len(labels)
        or len(labels) != num_classes
    ):
        raise ValueError(
            f"`labels` must be None or num_classes={num_classes} "
            f"different names. Received: labels={labels!r}"
        )
