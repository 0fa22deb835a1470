"""Masked language modeling, and BERT's second task, next sentences.

Shape letters: B batch, T sequence length, K masked positions, D embedding size
(`hidden_dim`), V vocabulary size.
"""

from typing import Any

import keras
import keras_hub
from keras import ops

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import (
    Tensor,
    Tensors,
    dense,
    kernel_initializer,
    resolve_activation,
)
from keras_fixedhead.packing import Packing
from keras_fixedhead.task import FixedHeadTask
from keras_fixedhead.tokenizer import FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadMaskedLMPreprocessor(keras_hub.models.MaskedLMPreprocessor):
    """Tokenizes, packs one or two segments and masks some of their tokens.

    Arguments, calls and results are those of
    `keras_hub.models.MaskedLMPreprocessor`. Pass `y=None` with a tuple of two
    segments, which KerasHub otherwise takes for inputs and labels.
    """

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadMaskedLM(FixedHeadTask, keras_hub.models.MaskedLM):
    """Predicts masked tokens with a `FixedHeadBackbone`.

    BERT's head (Devlin et al. 2018): a dense layer, a norm, and the transposed
    token embedding. Logits are computed at the masked positions only.

    Args:
        next_sentence: whether to also predict if the second segment follows
            the first in its document. Without a pooler, a `ValueError`.

    Call arguments:
        inputs: the backbone's inputs, a dictionary of int tensors `[B, T]`,
            and `mask_positions`, an int tensor `[B, K]`.

    Returns:
        Logits `[B, K, V]`, in the compute dtype. With `next_sentence` a
        dictionary of these, `masked_lm`, and of logits `[B, 2]`,
        `next_sentence` (0 = it follows, 1 = it does not).
    """

    preprocessor_cls = FixedHeadMaskedLMPreprocessor

    def __init__(
        self,
        backbone: FixedHeadBackbone,
        preprocessor: FixedHeadMaskedLMPreprocessor | None = None,
        next_sentence: bool = False,
        **kwargs: Any,
    ):
        if next_sentence and not backbone.pooler:
            raise ValueError(
                "`next_sentence` needs a backbone with pooler=True. "
                "Received: pooler=False"
            )

        # === Config ===
        self.next_sentence = next_sentence

        # === Layers ===
        self.masked_lm_head = keras_hub.layers.MaskedLMHead(
            token_embedding=backbone.token_embedding,
            intermediate_activation=resolve_activation(backbone.activation),
            layer_norm_epsilon=backbone.layer_norm_epsilon,
            kernel_initializer=kernel_initializer(),
            dtype=backbone.dtype_policy,
            name="masked_lm_head",
        )
        # Else KerasHub's head adds its float32 bias to bfloat16 logits.
        self.masked_lm_head.autocast = True
        self.next_sentence_dense: Any = None
        if next_sentence:
            self.next_sentence_dense = dense(
                2, "next_sentence_dense", backbone.dtype_policy
            )

        # === Functional Model ===
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = {**backbone.input, "mask_positions": positions}
        encoded = backbone(backbone.input)
        logits = self.masked_lm_head(encoded["sequence_output"], positions)
        outputs = self._with_next_sentence(logits, encoded.get("pooled_output"))
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    def predict_packed(
        self,
        inputs: Tensors,
        real: Tensor | None = None,
        training: bool = False,
        fixed_size: bool = False,
    ) -> Any:
        """The same outputs; the last block computes the masked positions only.

        With `real`, a bool tensor `[B, K]`, logits of masked tokens are
        `[P, V]`, for its P true positions, in order.
        """
        positions, wanted = inputs["mask_positions"], real
        if self.next_sentence:
            # The pooler reads the first token.
            positions = ops.pad(positions, ((0, 0), (1, 0)))
            if real is not None:
                first = ops.ones_like(real[:, :1])
                wanted = ops.concatenate((first, real), axis=1)
        x, packing = self.backbone.encode_positions(
            inputs, positions, wanted, training, fixed_size
        )
        x = packing.pad(x)
        pooled = None
        if self.next_sentence:
            pooled = self.backbone.pooled_dense(x[:, 0, :])
            x = x[:, 1:, :]
        if real is not None:
            x = ops.expand_dims(Packing(real).pack(x), 0)
        # `x` holds the masked positions only: the head takes all of them.
        batch, length = ops.shape(x)[:2]
        places = ops.broadcast_to(ops.arange(length), (batch, length))
        logits = self.masked_lm_head(x, places)
        return self._with_next_sentence(
            logits if real is None else logits[0], pooled
        )

    def _with_next_sentence(self, logits, pooled_output):
        if not self.next_sentence:
            return logits
        return {
            "masked_lm": logits,
            "next_sentence": self.next_sentence_dense(pooled_output),
        }
