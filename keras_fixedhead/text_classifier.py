"""One of several classes for a text or a pair: the encoder, pooled, a head.

Shape letters: B batch, T sequence length, D embedding size (`hidden_dim`),
C classes.
"""

import keras
import keras_hub
from keras import ops

from keras_fixedhead.backbone import (
    FixedHeadBackbone,
    kernel_initializer,
    refuse_unknown_arguments,
)
from keras_fixedhead.text_classifier_preprocessor import (
    FixedHeadTextClassifierPreprocessor,
)
from keras_fixedhead.text_embedder import pool, refuse_blind_token


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextClassifier(keras_hub.models.TextClassifier):
    """Classifies texts, or pairs of texts, with a `FixedHeadBackbone`.

    BERT's head (Devlin et al. 2018, section 4.1): the pooled vector, dropout
    and a dense layer. The pooled vector is the backbone's own where it has a
    pooler and `pooling_mode` is `"cls"`; else tokens are pooled as a
    `FixedHeadTextEmbedder` does, and go through a dense layer with tanh.

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
        TypeError: if there is no such argument.
        ValueError: if there is no such pooling mode, or none that makes
            sense of a causal backbone, `num_classes` is below 2, or `labels`
            are not as many different names.

    Example:

    ```python
    classifier = FixedHeadTextClassifier.from_preset(
        "runs/novels/train/preset",
        num_classes=3,
        labels=["entailment", "neutral", "contradiction"],
    )
    classifier.fit((premises, hypotheses), numbers_of_labels)
    # `predict` takes a tuple of two for inputs and labels.
    inputs = classifier.preprocessor((premises, hypotheses), y=None)
    logits = classifier(inputs)
    ```
    """

    backbone_cls = FixedHeadBackbone
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
        refuse_unknown_arguments(self, kwargs)
        refuse_blind_token(backbone, pooling_mode)
        _check(num_classes, labels)
        # Few numbers for each sequence: exact at no cost.
        dtype = "float64" if backbone.compute_dtype == "float64" else "float32"

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
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
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    @classmethod
    def from_preset(cls, preset, *args, **kwargs):
        if "num_classes" in kwargs:
            # With these KerasHub makes a new head, which those that a
            # classifier was saved with do not name.
            kwargs.setdefault("labels", None)
        classifier = super().from_preset(preset, *args, **kwargs)
        # Of another task, such as pre-training, it has no length for texts.
        longest = classifier.backbone.max_sequence_length
        preprocessor = classifier.preprocessor
        if preprocessor is not None and preprocessor.sequence_length > longest:
            preprocessor.sequence_length = longest
        return classifier

    def classify_packed(self, inputs, training=False, fixed_size=False):
        """The same logits, computed on real tokens only.

        With `pooling_mode="cls"` the last block computes the first tokens
        only. See `FixedHeadBackbone.encode_packed` for where it runs.

        Args:
            inputs: the model's inputs, a dictionary of int tensors `[B, T]`.
            training: bool. Whether dropout is applied.
            fixed_size: bool. See `Packing`.

        Returns:
            Logits `[B, C]`.
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
        config = super().get_config()
        config.update(
            num_classes=self.num_classes,
            pooling_mode=self.pooling_mode,
            dropout=self.dropout,
            labels=self.labels,
        )
        return config


def _check(num_classes, labels):
    if not isinstance(num_classes, int) or num_classes < 2:
        raise ValueError(
            "`num_classes` must be an integer of at least 2. "
            f"Received: num_classes={num_classes!r}"
        )
    if labels is None:
        return
    if (
        isinstance(labels, str)
        or not all(isinstance(label, str) for label in labels)
        or len(set(labels)) != len(labels)
        or len(labels) != num_classes
    ):
        raise ValueError(
            f"`labels` must be None or num_classes={num_classes} different "
            f"names. Received: labels={labels!r}"
        )
