"""Classification of texts or pairs of texts: the encoder, pooled, and a head.

Shape letters: B batch, T sequence length, D embedding size (`hidden_dim`),
C classes.
"""

from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
from keras import ops

from keras_fixedhead.argument_checks import one_of, positive_int
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import Tensor, Tensors, dense
from keras_fixedhead.task import FixedHeadPreprocessor, FixedHeadTask
from keras_fixedhead.text_embedder import pool, refuse_blind_token
from keras_fixedhead.tokenizer import FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextClassifierPreprocessor(
    FixedHeadPreprocessor, keras_hub.models.TextClassifierPreprocessor
):
    """Tokenizes, packs one or two texts, truncates and pads.

    A text becomes `[CLS] text [SEP]`, a pair `[CLS] first [SEP] second [SEP]`
    with segment ids 0 up to the first `[SEP]` and 1 after it (Devlin et al.
    2018, section 3).

    Args:
        sequence_length: the most tokens of a sequence, with `[CLS]` and
            `[SEP]`; longer texts are truncated.
        truncate: how to shorten a pair: `"round_robin"` keeps a token of each
            text in turn, `"waterfall"` the first text before the second.

    Call arguments:
        - `x`: a string, a list or tensor of B strings, or a tuple of two of
          these for pairs. Pass `y=None` with a tuple, which KerasHub otherwise
          takes for inputs and labels.
        - `y`, `sample_weight`: returned as they are.

    Returns:
        A dictionary of int tensors `[B, sequence_length]`: `token_ids`,
        `padding_mask` (1 = real token) and `segment_ids`; with `y`, a tuple
        of the dictionary and `y`.
    """

    def __init__(
        self,
        tokenizer: FixedHeadTokenizer,
        sequence_length: int = 128,
        truncate: str = "round_robin",
        **kwargs: Any,
    ):
        one_of("truncate", truncate, ("round_robin", "waterfall"))
        super().__init__(
            tokenizer,
            sequence_length=sequence_length,
            truncate=truncate,
            **kwargs,
        )

    def pad_to_longest(
        self,
        text: Tensor,
        second: Tensor | None = None,
        sequence_length: int | None = None,
    ) -> Tensors:
        """The same as calling, by TensorFlow operations, padded to the longest.

        Takes one string `tf.Tensor` `[B]`, or two for pairs, and optionally a
        `sequence_length` below the preprocessor's.
        """
        texts = [text] if second is None else [text, second]
        return self.pack_to_longest(texts, sequence_length)


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextClassifier(FixedHeadTask, keras_hub.models.TextClassifier):
    """Classifies texts, or pairs of texts, with a `FixedHeadBackbone`.

    BERT's head (Devlin et al. 2018, section 4.1): the pooled vector, dropout
    and a dense layer. With `pooling_mode="cls"` and a backbone with pooler,
    the pooled vector is the backbone's. Otherwise it is pooled as in
    `FixedHeadTextEmbedder`, followed by a dense layer with tanh.

    Args:
        num_classes: C, at least 2.
        pooling_mode: `"mean"`, `"max"` or, unless the backbone is causal,
            `"cls"`.
        dropout: dropout rate of the head's input.
        labels: C different names of the classes in the order of the logits.

    Call arguments:
        - `inputs`: the backbone's inputs, a dictionary of int tensors `[B, T]`.

    Returns:
        Logits `[B, C]`, float32 unless the model computes in float64.

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
        backbone: FixedHeadBackbone,
        num_classes: int,
        preprocessor: FixedHeadTextClassifierPreprocessor | None = None,
        pooling_mode: str = "cls",
        dropout: float = 0.1,
        labels: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        refuse_blind_token(backbone, pooling_mode)

        # === Config ===
        self.num_classes = num_classes
        self.pooling_mode = pooling_mode
        self.dropout = dropout
        self.labels = checked_labels(num_classes, labels)

        # === Layers ===
        # The head is small: float32 costs nothing.
        dtype = keras.backend.result_type(backbone.compute_dtype, "float32")
        self.pooled_dense: Any = None
        if pooling_mode != "cls" or not backbone.pooler:
            size = backbone.hidden_dim
            self.pooled_dense = dense(size, "pooled_dense", dtype, "tanh")
        self.output_dropout = keras.layers.Dropout(
            dropout, dtype=dtype, name="classifier_dropout"
        )
        self.output_dense = dense(num_classes, "logits", dtype)

        # === Functional Model ===
        inputs = backbone.input
        encoded = backbone(inputs)
        if self.pooled_dense is None:
            pooled = encoded["pooled_output"]
        else:
            x, mask = encoded["sequence_output"], inputs["padding_mask"]
            pooled = self.pooled_dense(pool(x, mask, pooling_mode))
        outputs = self.output_dense(self.output_dropout(pooled))
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    def classify_packed(
        self, inputs: Tensors, training: bool = False, fixed_size: bool = False
    ) -> Tensor:
        """The same logits, of real tokens only; see `encode_packed`.

        With `pooling_mode="cls"` the last block computes first tokens only.
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
            mask = inputs["padding_mask"]
            pooled = pool(packing.pad(x), mask, self.pooling_mode)
        pooled_dense = self.pooled_dense or self.backbone.pooled_dense
        pooled = self.output_dropout(pooled_dense(pooled), training=training)
        return self.output_dense(pooled)


def checked_labels(
    num_classes: int, labels: Sequence[str] | None
) -> list[str] | None:
    positive_int("num_classes", num_classes, least=2)
    if labels is None:
        return None
    names = {label for label in labels if isinstance(label, str)}
    if isinstance(labels, str) or not (
        len(names) == len(labels) == num_classes
    ):
        raise ValueError(
            f"`labels` must be None or num_classes={num_classes} "
            f"different names. Received: labels={labels!r}"
        )
    return list(labels)
