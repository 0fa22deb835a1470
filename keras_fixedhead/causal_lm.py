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

from keras_fixedhead.attention_checks import one_of
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import Tensor, Tensors
from keras_fixedhead.packing import Packing
from keras_fixedhead.task import FixedHeadPreprocessor, FixedHeadTask
from keras_fixedhead.tokenizer import FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadCausalLMPreprocessor(
    FixedHeadPreprocessor, keras_hub.models.CausalLMPreprocessor
):
    """Tokenizes, adds `[CLS]` and `[SEP]`, and makes labels of next tokens.

    `[CLS]` starts a text, so that the model also predicts the first word, and
    `[SEP]` ends it, also where the text is truncated.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: the length T of all sequences.
        **kwargs: as in `keras_hub.models.CausalLMPreprocessor`:
            `add_start_token`, `add_end_token`.

    Call arguments:
        x: a string, or a list or tensor of B strings.
        sequence_length: replaces the preprocessor's length.

    Returns:
        `(x, y, sample_weight)`: a dictionary of tensors `[B, T]`, `token_ids`
        and `padding_mask` (1 = real token); the ids of the next tokens,
        `[B, T]`; and 1 where there is a next token.

    `generate_preprocess` returns prompts: the same without `[SEP]` and labels.
    `generate_postprocess` returns texts without special tokens (including
    `[UNK]`) and with a space between words and punctuation.
    """

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

    The language model of the paper's experiments on LM1B (section 4.1), but
    with learned positions. The head is the transposed token embedding.
    `generate` continues texts; a cache of keys and values makes each new token
    cost one pass of one token.

    Args:
        backbone: a `FixedHeadBackbone` with `causal=True`.
        preprocessor: a `FixedHeadCausalLMPreprocessor` or `None`.
        **kwargs: `name`, `trainable`, as in `keras.Model`.

    Call arguments:
        inputs: a dictionary of int tensors `[B, T]`: `token_ids`, and
            `padding_mask` (1 = real token). All tokens are of one segment.

    Returns:
        Logits `[B, T, V]` of each next token, in the compute dtype. Logits at
        padding positions are undefined.

    Raises:
        ValueError: if the backbone is not causal.

    Example:

    ```python
    tokenizer = FixedHeadTokenizer(vocabulary)
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

    Source: https://arxiv.org/abs/2002.07028, section 4.
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
                "`backbone` must be causal, or it would see the tokens that it "
                "predicts. Make it with causal=True; "
                "FixedHeadBackbone.from_preset(preset, causal=True) makes one "
                "with the weights of an encoder. Received: a backbone with "
                f"causal={backbone.causal!r}"
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
        """Configures `fit`, `evaluate` and `generate`.

        Arguments are those of `keras_hub.models.CausalLM.compile`, but
        `loss="auto"` is the mean cross entropy of real tokens, whose
        exponential is the perplexity. KerasHub counts padding as tokens
        without loss. Over batches with different numbers of tokens
        `keras_hub.metrics.Perplexity(from_logits=True)` is exact.
        """
        if loss == "auto":
            loss = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def predict_packed(
        self, inputs: Tensors, training: bool = False, fixed_size: bool = False
    ) -> tuple[Tensor, Packing]:
        """The same logits, computed on real tokens only.

        For the arguments see `FixedHeadBackbone.encode_packed`. Returns logits
        `[P, V]` and the `Packing` whose `pack` makes `[P]` of labels `[B, T]`.
        """
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
        """Scores int `token_ids` `[B, T]`, token by token.

        Without a `padding_mask` `[B, T]` (1 = real token) all tokens are real.
        The `scoring_mode` `"logits"` returns `[B, T, V]`; `"loss"` the cross
        entropy of each next token in `target_ids`, `[B, T]`, float32 unless
        the model computes in float64. Minus its sum over a sequence is the
        log-likelihood.
        """
        one_of("scoring_mode", scoring_mode, ("logits", "loss"))
        if scoring_mode == "loss" and target_ids is None:
            raise ValueError(
                "A loss needs `target_ids`, the next tokens. Pass them, or "
                "scoring_mode='logits'. Received: target_ids=None"
            )
        token_ids = ops.convert_to_tensor(token_ids)
        if padding_mask is None:
            padding_mask = ops.ones_like(token_ids)
        padding_mask = ops.convert_to_tensor(padding_mask)
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        logits = self(inputs, training=False)
        if scoring_mode == "logits":
            return logits
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        return keras.losses.sparse_categorical_crossentropy(
            target_ids, ops.cast(logits, dtype), from_logits=True
        )

    def generate(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Continues texts, as `keras_hub.models.CausalLM.generate`.

        Takes a string or a list of B strings, and `max_length` (at most the
        backbone's `max_sequence_length`), `stop_token_ids` and `strip_prompt`.
        Returns the texts with their prompts. Without a preprocessor, takes the
        model's inputs, where `padding_mask` is 1 at the prompt, at the start
        of each row, and returns a dictionary of int and bool arrays `[B, T]`.
        """
        if self.preprocessor is None and isinstance(inputs, dict):
            _check_prompts(inputs["padding_mask"])
        return super().generate(inputs, *args, **kwargs)

    def generate_step(
        self, inputs: Tensors, stop_token_ids: Sequence[int] | None = None
    ) -> Tensors:
        """Continues one batch of sequences; `generate` compiles this.

        Keeps the real tokens of the model's inputs `[B, T]`, at the start of
        each row, and generates the others. A row ends with the first
        generated token of `stop_token_ids`; `None` fills all rows. Returns a
        dictionary: int `token_ids` `[B, T]`, and a bool `padding_mask`
        `[B, T]`, false after the end.
        """
        token_ids = ops.convert_to_tensor(inputs["token_ids"])
        given = ops.cast(inputs["padding_mask"], "bool")
        length, longest = token_ids.shape[1], self.backbone.max_sequence_length
        if length is not None and length > longest:
            raise ValueError(
                f"This model has positions for {longest} tokens. Pass at most "
                "that as `max_length`, or set `preprocessor.sequence_length`. "
                f"Received: sequences of {length}"
            )
        hidden_states, cache = self._build_cache(token_ids)

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
            stops = ops.zeros_like(given)
            for stop in stop_token_ids:
                stops = ops.logical_or(stops, token_ids == stop)
            stops = ops.cast(
                ops.logical_and(stops, ops.logical_not(given)), "int32"
            )
            # A token is real if no stop is before it.
            padding_mask = ops.cumsum(stops, axis=1) - stops == 0
        return {"token_ids": token_ids, "padding_mask": padding_mask}

    def call_with_cache(
        self,
        token_ids: Tensor,
        cache: Sequence[Tensor],
        cache_update_index: int | Tensor,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Continues a sequence whose past is in a cache.

        Takes token ids `[B, T]` without padding, a tuple of caches
        `[B, 2, S, W]`, one per layer, and where in the sequence the part
        starts; see `FixedMultiHeadAttention`. Returns logits `[B, T, V]`, the
        encoded tokens `[B, T, D]`, and the new caches.
        """
        x, cache = self.backbone.encode_with_cache(
            token_ids, cache, cache_update_index
        )
        return self.backbone.token_embedding(x, reverse=True), x, cache

    def _build_cache(self, token_ids):
        """Encodes whole sequences; returns tokens `[B, T, D]` and a cache."""
        batch, length = ops.shape(token_ids)
        cache = tuple(
            ops.zeros(
                (batch, 2, length, sum(layer.attention.head_sizes)),
                dtype=layer.compute_dtype,
            )
            for layer in self.backbone.transformer_layers
        )
        return self.backbone.encode_with_cache(token_ids, cache, 0)


def _one_segment(inputs):
    """A backbone's inputs."""
    return {
        "token_ids": inputs["token_ids"],
        "segment_ids": ops.zeros_like(inputs["token_ids"]),
        "padding_mask": inputs["padding_mask"],
    }


def _check_prompts(padding_mask):
    real = ops.convert_to_numpy(padding_mask) != 0
    if not real[:, 0].all() or (real[:, 1:] > real[:, :-1]).any():
        raise ValueError(
            "`padding_mask` must be 1 at the first token of each row, and "
            "nowhere after a 0: generated tokens follow the prompt. "
            f"Received: padding_mask={padding_mask!r}"
        )
