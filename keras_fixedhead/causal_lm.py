"""Language modeling: predicts the next token, and generates texts.

Shape letters: B batch, T sequence length, P real tokens of a packed batch,
D embedding size (`hidden_dim`), W total width of all heads of a layer,
V vocabulary size.
"""

from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
from keras import ops

from keras_fixedhead.argument_checks import one_of
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import Tensor, Tensors, at_least_float32
from keras_fixedhead.packing import Packing
from keras_fixedhead.task import FixedHeadTask
from keras_fixedhead.tokenizer import FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadCausalLMPreprocessor(keras_hub.models.CausalLMPreprocessor):
    """Tokenizes, adds `[CLS]` and `[SEP]`, and makes labels of next tokens.

    `[CLS]` starts a text, so that the model also predicts the first word, and
    `[SEP]` ends it, also where the text is truncated. Generated texts have no
    special tokens (including `[UNK]`), and a space between words and
    punctuation. `sequence_length` is the length T of all sequences; the other
    arguments are those of `keras_hub.models.CausalLMPreprocessor`.

    Returns:
        `(x, y, sample_weight)`: a dictionary of tensors `[B, T]`, `token_ids`
        and `padding_mask` (1 = real token); the ids of the next tokens,
        `[B, T]`; and 1 where there is a next token.
    """

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer

    def __init__(
        self,
        tokenizer: FixedHeadTokenizer,
        sequence_length: int = 256,
        **kwargs: Any,
    ):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadCausalLM(FixedHeadTask, keras_hub.models.CausalLM):
    """Predicts the next token with a causal `FixedHeadBackbone`.

    The language model of the paper's experiments on LM1B
    (https://arxiv.org/abs/2002.07028, section 4.1), but with learned
    positions. The head is the transposed token embedding. `generate` continues
    texts, with a cache of keys and values.

    Args:
        backbone: a `FixedHeadBackbone` with `causal=True`, else `ValueError`.

    Call arguments:
        inputs: a dictionary of int tensors `[B, T]`: `token_ids`, and
            `padding_mask` (1 = real token). All tokens are of one segment.

    Returns:
        Logits `[B, T, V]` of each next token, in the compute dtype; undefined
        at padding.

    Example:

    ```python
    shape = presets.shape("lm1b_d256_p32_h16")
    shape["vocabulary_size"] = tokenizer.vocabulary_size()
    model = FixedHeadCausalLM(
        FixedHeadBackbone(**shape, causal=True),
        FixedHeadCausalLMPreprocessor(tokenizer, sequence_length=256),
    )
    model.fit(texts)
    model.compile(sampler="top_p")
    model.generate(["once upon", "the"], max_length=64)
    ```
    """

    preprocessor_cls = FixedHeadCausalLMPreprocessor

    def __init__(
        self,
        backbone: FixedHeadBackbone,
        preprocessor: FixedHeadCausalLMPreprocessor | None = None,
        **kwargs: Any,
    ):
        if not backbone.causal:
            raise ValueError(
                "`backbone` must be causal. Make it with causal=True, or by "
                "FixedHeadBackbone.from_preset(preset, causal=True). "
                f"Received: a backbone with causal={backbone.causal!r}"
            )
        inputs = {
            name: backbone.input[name] for name in ("token_ids", "padding_mask")
        }
        encoded = backbone(_one_segment(inputs))
        outputs = backbone.token_embedding(
            encoded["sequence_output"], reverse=True
        )
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "auto",
        loss: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """As `keras_hub.models.CausalLM.compile`, but for `loss="auto"`.

        That is the mean cross entropy of real tokens, whose exponential is the
        perplexity; KerasHub's also counts padding.
        """
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def predict_packed(
        self, inputs: Tensors, training: bool = False, fixed_size: bool = False
    ) -> tuple[Tensor, Packing]:
        """The logits of real tokens only, `[P, V]`, and their `Packing`."""
        x, packing = self.backbone.encode_packed(
            _one_segment(inputs), training, fixed_size
        )
        return self.backbone.token_embedding(x, reverse=True), packing

    def score(
        self,
        token_ids: Tensor,
        padding_mask: Tensor | None = None,
        scoring_mode: str = "logits",
        target_ids: Tensor | None = None,
    ) -> Tensor:
        """The logits `[B, T, V]` or the loss of int `token_ids` `[B, T]`.

        That is the cross entropy of each next token, `target_ids` `[B, T]`,
        float32 at least. Without a `padding_mask` all tokens are real.
        """
        one_of("scoring_mode", scoring_mode, ("logits", "loss"))
        token_ids = ops.convert_to_tensor(token_ids)
        if padding_mask is None:
            padding_mask = ops.ones_like(token_ids)
        padding_mask = ops.convert_to_tensor(padding_mask)
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        logits = self(inputs, training=False)
        if scoring_mode == "logits":
            return logits
        return keras.losses.sparse_categorical_crossentropy(
            target_ids, at_least_float32(logits), from_logits=True
        )

    def generate(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Continues texts, as `keras_hub.models.CausalLM.generate`.

        Takes a string or a list of B strings, and `max_length` (at most the
        backbone's `max_sequence_length`), `stop_token_ids` and `strip_prompt`.
        Without a preprocessor, takes the model's inputs, where `padding_mask`
        is 1 at the prompt, at the start of each row, and returns a dictionary
        of int and bool arrays `[B, T]`.
        """
        if self.preprocessor is None and isinstance(inputs, dict):
            real = ops.convert_to_numpy(inputs["padding_mask"]) != 0
            if not real[:, 0].all() or (real[:, 1:] > real[:, :-1]).any():
                raise ValueError(
                    "`padding_mask` must be 1 at the first token of each row, "
                    "and nowhere after a 0. Received: "
                    f"padding_mask={inputs['padding_mask']!r}"
                )
        return super().generate(inputs, *args, **kwargs)

    def generate_step(
        self, inputs: Tensors, stop_token_ids: Sequence[int] | None = None
    ) -> Tensors:
        """Continues one batch of sequences; `generate` compiles this.

        A row ends with the first generated token of `stop_token_ids`; `None`
        fills all rows. Returns int `token_ids` `[B, T]`, and a bool
        `padding_mask` `[B, T]`, false after the end.
        """
        token_ids = ops.convert_to_tensor(inputs["token_ids"])
        given = ops.cast(inputs["padding_mask"], "bool")
        length, longest = token_ids.shape[1], self.backbone.max_sequence_length
        if length is not None and length > longest:
            raise ValueError(
                "`max_length` or `preprocessor.sequence_length` must be at "
                f"most the model's {longest}. Received: {length}"
            )
        cache = self.backbone.new_cache(*ops.shape(token_ids))
        hidden_states, cache = self.backbone.encode_with_cache(
            token_ids, cache, 0
        )

        def next(prompt, cache, index):
            # The token before the next one.
            last = ops.slice(prompt, (0, index - 1), (ops.shape(prompt)[0], 1))
            logits, hidden_states, cache = self.call_with_cache(
                last, cache, index - 1
            )
            return logits[:, 0], hidden_states[:, 0], cache

        token_ids = self.sampler(
            next=next,
            prompt=token_ids,
            cache=cache,
            # Longer prompts than the shortest keep their tokens.
            index=ops.min(ops.sum(ops.cast(given, "int32"), axis=1)),
            mask=given,
            stop_token_ids=stop_token_ids,
            hidden_states=hidden_states,
            model=self,
        )
        padding_mask = ops.ones_like(given)
        if stop_token_ids is not None:
            # Keras's `isin` does not work in a graph of TensorFlow.
            stops = ops.cast(stop_token_ids, token_ids.dtype)
            stops = ops.any(token_ids[:, :, None] == stops, axis=-1)
            stops = ops.cast(stops & ~given, "int32")
            # A token is real if no stop is before it.
            padding_mask = ops.cumsum(stops, axis=1) - stops == 0
        return {"token_ids": token_ids, "padding_mask": padding_mask}

    def call_with_cache(
        self,
        token_ids: Tensor,
        cache: Sequence[Tensor],
        cache_update_index: int | Tensor,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """`encode_with_cache`, and logits `[B, T, V]` before its results."""
        x, cache = self.backbone.encode_with_cache(
            token_ids, cache, cache_update_index
        )
        return self.backbone.token_embedding(x, reverse=True), x, cache


def _one_segment(inputs):
    return {
        "token_ids": inputs["token_ids"],
        "segment_ids": ops.zeros_like(inputs["token_ids"]),
        "padding_mask": inputs["padding_mask"],
    }
