"""The encoder: BERT with attention heads of a fixed size.

Shape letters: B batch, T sequence length, D embedding size (`hidden_dim`),
P real tokens of a packed batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import keras_hub
from keras import ops

from keras_fixedhead.layer_config import (
    Tensor,
    Tensors,
    arguments_of,
    dense,
    kernel_initializer,
    refuse_unknown_arguments,
)
from keras_fixedhead.packing import Packing
from keras_fixedhead.transformer_block import FixedHeadTransformerBlock


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadBackbone(keras_hub.models.Backbone):
    """A BERT encoder whose head size is not tied to its embedding size.

    With `head_size = hidden_dim // num_heads` and the same weights it computes
    what `keras_hub.models.BertBackbone` does.

    Args:
        vocabulary_size, num_segments, max_sequence_length: the numbers of
            token ids, segment ids and position embeddings.
        num_layers, num_heads: of Transformer blocks, and of heads in each.
        hidden_dim: the embedding size; the heads need not divide it.
        head_size: the size of all heads, a sequence of one size per block, or
            `None` for `max_sequence_length`, the paper's choice.
        dropout: dropout rate of embeddings, attention and blocks.
        intermediate_dim, activation: see `FixedHeadTransformerBlock`.
        attention_window, attention_scale: see `FixedMultiHeadAttention`.
        layer_norm_epsilon: see `FixedHeadTransformerBlock`.
        pooler: whether there is a `pooled_output`: a dense layer with tanh on
            the first token.
        causal: whether tokens attend only to themselves and to earlier tokens,
            as in a language model; excludes `pooler`.

    Call arguments:
        inputs: a dictionary of int tensors `[B, T]`: `token_ids`,
            `segment_ids` and `padding_mask` (1 = real token).

    Returns:
        A dictionary: `sequence_output` `[B, T, D]` and, with a pooler,
        `pooled_output` `[B, D]`. Outputs at padding positions are undefined.

    Example:

    ```python
    backbone = FixedHeadBackbone(
        vocabulary_size=30522,
        num_layers=2,
        num_heads=8,
        hidden_dim=128,
        intermediate_dim=512,
        max_sequence_length=96,  # and so head_size=96
    )
    ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        head_size: int | Sequence[int] | None = None,
        attention_window: int | None = None,
        attention_scale: float | None = None,
        dropout: float = 0.1,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        activation: str | Callable = "gelu_approximate",
        layer_norm_epsilon: float = 1e-12,
        pooler: bool = False,
        causal: bool = False,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ):
        refuse_unknown_arguments(self, kwargs)
        if causal and pooler:
            raise ValueError(
                "The pooler reads the first token, which sees no other where "
                "`causal=True`. Received: pooler=True"
            )
        head_sizes = max_sequence_length if head_size is None else head_size
        if not isinstance(head_sizes, Sequence):
            head_sizes = [head_sizes] * num_layers
        if len(head_sizes) != num_layers:
            raise ValueError(
                "`head_size` as a sequence holds one size for each of the "
                f"{num_layers} layers. Received: head_size={head_size!r}"
            )

        # === Layers ===
        def embedding(cls, size, name):
            return cls(
                size,
                hidden_dim,
                embeddings_initializer=kernel_initializer(),
                dtype=dtype,
                name=name,
            )

        self.token_embedding = embedding(
            keras.layers.ReversibleEmbedding, vocabulary_size, "token_embedding"
        )
        # Without this Keras computes logits in float32 whatever the policy.
        self.token_embedding.reverse_dtype = self.token_embedding.compute_dtype
        self.position_embedding = keras_hub.layers.PositionEmbedding(
            max_sequence_length,
            initializer=kernel_initializer(),
            dtype=dtype,
            name="position_embedding",
        )
        self.segment_embedding = embedding(
            keras.layers.Embedding, num_segments, "segment_embedding"
        )
        self.embeddings_add = keras.layers.Add(
            dtype=dtype, name="embeddings_add"
        )
        self.embeddings_layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon,
            dtype=dtype,
            name="embeddings_layer_norm",
        )
        self.embeddings_dropout = keras.layers.Dropout(
            dropout, dtype=dtype, name="embeddings_dropout"
        )
        self.transformer_layers = [
            FixedHeadTransformerBlock(
                num_heads=num_heads,
                intermediate_dim=intermediate_dim,
                head_size=size,
                attention_window=attention_window,
                attention_scale=attention_scale,
                dropout=dropout,
                activation=activation,
                layer_norm_epsilon=layer_norm_epsilon,
                kernel_initializer=kernel_initializer(),
                dtype=dtype,
                name=f"transformer_layer_{i}",
            )
            for i, size in enumerate(head_sizes)
        ]
        self.pooled_dense: Any = None
        if pooler:
            self.pooled_dense = dense(hidden_dim, "pooled_dense", dtype, "tanh")

        # === Functional Model ===
        inputs = {
            name: keras.Input(shape=(None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask")
        }
        tokens = self.token_embedding(inputs["token_ids"])
        positions = self.position_embedding(tokens)
        x = self._normalize(
            self._sum_embeddings(tokens, positions, inputs["segment_ids"])
        )
        for layer in self.transformer_layers:
            x = layer(
                x, padding_mask=inputs["padding_mask"], use_causal_mask=causal
            )
        outputs = {"sequence_output": x}
        if pooler:
            outputs["pooled_output"] = self.pooled_dense(x[:, 0, :])
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.head_size = head_size
        self.attention_window = attention_window
        self.attention_scale = attention_scale
        self.dropout = dropout
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.pooler = pooler
        self.causal = causal

    def encode_packed(
        self,
        inputs: Tensors,
        training: bool = False,
        fixed_size: bool = False,
    ) -> tuple[Tensor, Packing]:
        """Encodes the real tokens only; padding costs nothing but attention.

        Takes the model's inputs `[B, T]`. Returns the encoded tokens `[P, D]`
        and the `Packing` whose `pad` returns them to `[B, T, D]`. For
        `fixed_size` and where this works see `Packing`.
        """

        def encode(packing):
            blocks = self.transformer_layers
            return self._encode(inputs, packing, training, blocks)

        packing = Packing(inputs["padding_mask"], fixed_size)
        # Keras cannot add empty tensors of a static shape.
        empty = 0 in packing.padding_mask.shape
        if training or fixed_size or empty:
            return encode(packing), packing
        # Without padding, as in a single query, packing only costs time.
        encoded = _cond(
            ops.all(packing.padding_mask),
            lambda: encode(Packing(packing.padding_mask, fixed_size=True)),
            lambda: encode(packing),
        )
        return encoded, packing

    def encode_packed_states(
        self,
        inputs: Tensors,
        training: bool = False,
        fixed_size: bool = False,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """`encode_packed` with all states `[P, D]`, and scores if asked for.

        Returns the states, the embeddings' and then each block's, and the
        `Packing`; last the attention scores `[B, N, T, T]` of each block,
        undefined at padded queries.
        """
        packing = Packing(inputs["padding_mask"], fixed_size)
        x = self.sum_packed_embeddings(inputs, packing)
        states, scores = [self._normalize(x, training)], []
        options = self._options(packing, training)
        for layer in self.transformer_layers:
            if return_attention_scores:
                x, found = layer(
                    states[-1], **options, return_attention_scores=True
                )
                scores.append(found)
            else:
                x = layer(states[-1], **options)
            states.append(x)
        more = (scores,) if return_attention_scores else ()
        return states, packing, *more

    def encode_positions(
        self,
        inputs: Tensors,
        positions: Tensor,
        real: Tensor | None = None,
        training: bool = False,
        fixed_size: bool = False,
    ) -> tuple[Tensor, Packing]:
        """`encode_packed` whose last block computes some `positions` `[B, K]`.

        With a bool tensor `real` `[B, K]`, those where it is true. Returns the
        encoded tokens `[Q, D]` and the `Packing` that pads them to `[B, K, D]`.
        """
        packing = Packing(inputs["padding_mask"], fixed_size)
        if real is None:
            selection = Packing(ops.ones_like(positions), fixed_size=True)
        else:
            selection = Packing(real)
        *blocks, last = self.transformer_layers
        x = self._encode(inputs, packing, training, blocks)
        options = self._options(packing, training)
        if self.attention_window is not None or self.causal:
            # Windows and causal masks need the positions of the queries.
            x = last(x, **options)
            return selection.pack(packing.take(x, positions)), selection
        queries = selection.pack(packing.take(x, positions))
        x = last(x, queries=queries, query_packing=selection, **options)
        return x, selection

    def new_cache(
        self, batch: int | Tensor, length: int | Tensor
    ) -> tuple[Tensor, ...]:
        """Zeros for `encode_with_cache` to fill, of sequences of a length."""
        return tuple(
            ops.zeros(
                (batch, 2, length, sum(layer.attention.head_sizes)),
                dtype=layer.compute_dtype,
            )
            for layer in self.transformer_layers
        )

    def encode_with_cache(
        self,
        token_ids: Tensor,
        cache: Sequence[Tensor],
        cache_update_index: int | Tensor,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Encodes a part of sequences whose keys and values are cached.

        Takes token ids `[B, T]`, all of one segment, one cache `[B, 2, S, W]`
        per layer, and where in the sequence the part starts. Returns the
        encoded tokens `[B, T, D]` and the new caches.
        """
        tokens = self.token_embedding(token_ids)
        positions = self.position_embedding(
            tokens, start_index=cache_update_index
        )
        x = self._sum_embeddings(tokens, positions, ops.zeros_like(token_ids))
        x = self._normalize(x, training=False)
        caches = []
        for layer, layer_cache in zip(
            self.transformer_layers, cache, strict=True
        ):
            x, layer_cache = layer(
                x,
                use_causal_mask=True,
                cache=layer_cache,
                cache_update_index=cache_update_index,
            )
            caches.append(layer_cache)
        return x, tuple(caches)

    def sum_packed_embeddings(
        self, inputs: Tensors, packing: Packing
    ) -> Tensor:
        """What the first norm reads of packed tokens, `[P, D]`."""
        batch, length = ops.shape(inputs["token_ids"])
        positions = ops.broadcast_to(ops.arange(length), (batch, length))
        tokens = self.token_embedding(packing.pack(inputs["token_ids"]))
        table = ops.cast(
            self.position_embedding.position_embeddings, tokens.dtype
        )
        positions = ops.take(table, packing.pack(positions), axis=0)
        segment_ids = packing.pack(inputs["segment_ids"])
        return self._sum_embeddings(tokens, positions, segment_ids)

    def _encode(self, inputs, packing, training, blocks):
        x = self.sum_packed_embeddings(inputs, packing)
        x = self._normalize(x, training)
        for layer in blocks:
            x = layer(x, **self._options(packing, training))
        return x

    def _options(self, packing, training):
        return {
            "packing": packing,
            "use_causal_mask": self.causal,
            "training": training,
        }

    def _sum_embeddings(self, tokens, positions, segment_ids):
        segments = self.segment_embedding(segment_ids)
        return self.embeddings_add((tokens, positions, segments))

    def _normalize(self, x, training=None):
        x = self.embeddings_layer_norm(x)
        return self.embeddings_dropout(x, training=training)

    def get_config(self) -> dict:
        return {**super().get_config(), **arguments_of(self)}


def _cond(condition, true_fn, false_fn):
    """`ops.cond`, for functions whose shapes depend on data."""
    if keras.backend.backend() == "jax":
        # JAX would trace both functions, in eager mode too.
        return true_fn() if condition else false_fn()
    return ops.cond(condition, true_fn, false_fn)
