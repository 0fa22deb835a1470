"""Extractive question answering: where in a text an answer starts and ends.

Shape letters: B batch, T sequence length, P real tokens of a packed batch.
"""

import keras
import keras_hub
from keras import ops

from keras_fixedhead.backbone import kernel_initializer
from keras_fixedhead.span_labeler_preprocessor import (
    FixedHeadSpanLabelerPreprocessor,
)
from keras_fixedhead.task import FixedHeadTask


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadSpanLabeler(FixedHeadTask, keras_hub.models.Task):
    """Finds answers in contexts with a `FixedHeadBackbone`.

    BERT's head for SQuAD (Devlin et al. 2018, section 4.2): the product of
    each token with one vector for starts and one for ends.

    Args:
        backbone: a `FixedHeadBackbone`.
        preprocessor: a `FixedHeadSpanLabelerPreprocessor` or `None`.
        dropout: float. Dropout rate of the head's input.
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

    def __init__(self, backbone, preprocessor=None, dropout=0.1, **kwargs):
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

    def compile(self, optimizer="auto", loss="auto", **kwargs):
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
            loss = {
                name: keras.losses.SparseCategoricalCrossentropy(
                    from_logits=True
                )
                for name in ("start", "end")
            }
            kwargs.setdefault("loss_weights", {"start": 0.5, "end": 0.5})
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def label_packed(self, inputs, training=False, fixed_size=False):
        """The same logits, computed on real tokens only.

        For the arguments see `FixedHeadBackbone.encode_packed`.
        """
        x, packing = self.backbone.encode_packed(inputs, training, fixed_size)
        logits = self.span_dense(self.span_dropout(x, training=training))
        return _outputs(packing.pad(logits), inputs["padding_mask"])

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


def _outputs(logits, padding_mask):
    """Logits `[B, T, 2]` as a dictionary, -1e9 at padding."""
    logits = ops.cast(
        logits, keras.backend.result_type(logits.dtype, "float32")
    )
    real = ops.cast(padding_mask, "bool")
    return {
        name: ops.where(real, logits[:, :, i], -1e9)
        for i, name in enumerate(("start", "end"))
    }
