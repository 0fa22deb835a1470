"""The Transformer block: attention and feed-forward, residuals and norms.

Shape letters: B batch, T sequence length, D embedding size, P real tokens of
a packed batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.layer_config import (
    FixedHeadLayer,
    Shape,
    Tensor,
    resolve_activation,
)
from keras_fixedhead.packing import Packing


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTransformerBlock(FixedHeadLayer):
    """BERT's Transformer block around a `FixedMultiHeadAttention`.

    `x = LN(x + attention(x))`, then `x = LN(x + feed_forward(x))` (equation
    (2) of the paper), with dropout before each sum.

    Args:
        intermediate_dim: the width of the feed-forward layer.
        dropout: rate for the attention scores and before both sums.
        activation: `"gelu_approximate"` (tanh, as the original BERT),
            `"gelu"` (erf, as Hugging Face's BERT), or any other name or
            function that `keras.activations.get` takes.
        layer_norm_epsilon: epsilon of both norms.
        kernel_initializer: initializer of every kernel.

    Call arguments:
        - `inputs`: float tensor `[B, T, D]`, or with `packing` `[P, D]`.
        - `padding_mask`: bool or int tensor `[B, T]`, 1 = attend to it.
        - `queries`: float tensor `[Q, D]`, the rows of `inputs` to compute
          outputs for; `None` means all. Needs `packing`.
        - `query_packing`: the `Packing` of `queries`.

    The other arguments are those of `FixedMultiHeadAttention`.

    Returns:
        A tensor of the shape of `inputs`, or of `queries` if given; with
        `return_attention_scores` or `cache` a tuple of it, the scores
        `[B, N, T, S]`, and the new cache.
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        head_size: int | Sequence[int] | None = None,
        attention_window: int | None = None,
        attention_scale: float | None = None,
        dropout: float = 0.0,
        activation: str | Callable = "gelu_approximate",
        layer_norm_epsilon: float = 1e-12,
        kernel_initializer: str | dict | Callable = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.attention_window = attention_window
        self.attention_scale = attention_scale
        self.dropout = dropout
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.attention = FixedMultiHeadAttention(
            num_heads=num_heads,
            head_size=head_size,
            attention_window=attention_window,
            attention_scale=attention_scale,
            dropout=dropout,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="attention",
        )

    @property
    def head_size(self) -> int | tuple[int, ...] | None:
        """That of the attention: built, `None` is the sequence length."""
        return self.attention.head_size

    def build(self, inputs_shape: Shape) -> None:
        self.attention.build(inputs_shape)
        self.attention_layer_norm = self._layer_norm("attention_layer_norm")
        self.attention_layer_norm.build(inputs_shape)
        self.intermediate_dense = self._dense(
            self.intermediate_dim,
            "intermediate_dense",
            resolve_activation(self.activation),
        )
        self.intermediate_dense.build(inputs_shape)
        self.output_dense = self._dense(inputs_shape[-1], "output_dense")
        self.output_dense.build((*inputs_shape[:-1], self.intermediate_dim))
        self.output_layer_norm = self._layer_norm("output_layer_norm")
        self.output_layer_norm.build(inputs_shape)
        self.attention_dropout, self.output_dropout = (
            keras.layers.Dropout(
                self.dropout, dtype=self.dtype_policy, name=name
            )
            for name in ("attention_dropout", "output_dropout")
        )
        self.built = True

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        packing: Packing | None = None,
        queries: Tensor | None = None,
        query_packing: Packing | None = None,
        training: bool | None = None,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        value = None if queries is None else inputs
        queries = inputs if queries is None else queries
        x = self.attention(
            queries,
            value,
            value_mask=padding_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            packing=packing,
            query_packing=query_packing,
            training=training,
            cache=cache,
            cache_update_index=cache_update_index,
            return_attention_scores=return_attention_scores,
        )
        more = ()
        if return_attention_scores or cache is not None:
            x, *more = x
        x = self.attention_dropout(x, training=training)
        attended = self.attention_layer_norm(queries + x)
        x = self.intermediate_dense(attended)
        x = self.output_dense(x)
        x = self.output_dropout(x, training=training)
        x = self.output_layer_norm(attended + x)
        return (x, *more) if more else x

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> dict:
        config = super().get_config()
        if callable(self.activation):
            config["activation"] = keras.activations.serialize(self.activation)
        return config

    def _dense(self, units, name, activation=None):
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def _layer_norm(self, name):
        return keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )
