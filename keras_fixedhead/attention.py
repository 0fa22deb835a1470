"""Multi-head attention whose head size does not depend on the embedding size.

Shape letters: B batch, T query length, S key length, D embedding size,
N heads, H head size, W total width of all heads (N * H where heads are equal).

The paper (Bhojanapalli et al. 2020) writes sequences as columns; here they are
rows. Its V_q^i, V_k^i, V_v^i are the i-th H columns of the `query`, `key` and
`value` kernels, its V_o the `attention_output` kernel and its context P the
scores, all transposed; its d_p is H.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_fixedhead.argument_checks import (
    check_cache,
    check_head_size,
    check_packing,
    positive_int,
    refuse_keras_names,
)
from keras_fixedhead.attention_functions import (
    combine_attention_masks,
    multi_head_attention,
    write_cache,
)
from keras_fixedhead.layer_config import FixedHeadLayer, Shape, Tensor
from keras_fixedhead.packing import Packing


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedMultiHeadAttention(FixedHeadLayer):
    """Multi-head attention whose head size is an argument.

    In the usual layer the head size is the embedding size divided by the
    number of heads. Once that is below the sequence length, a head cannot
    represent every attention pattern (Theorem 1 of the paper). Here the head
    size defaults to the sequence length, and the number of heads need not
    divide the embedding size.

    The layer replaces `keras.layers.MultiHeadAttention`: same call arguments,
    same implicit Keras masks; `convert.from_multi_head_attention` converts a
    built one. The weights are those of four `keras.layers.Dense`, heads side
    by side: `query`, `key` and `value` with kernels `(D, W)`,
    `attention_output` with `(W, D_out)`. LoRA and quantization work.

    Args:
        num_heads: the number of attention heads.
        head_size: the size of all heads, a sequence of one size per head, or
            `None`: the static length of the query sequence when the layer is
            built.
        attention_window: position `i` attends only to the positions `j` with
            `|i - j| < attention_window`.
        attention_scale: above 0. Multiplies the attention logits; `None`
            means `1 / sqrt(head_size)` of each head.
        dropout: in `[0, 1)`. Dropout rate of the attention scores.
        output_dim: the size of the output; `None` means the query's.
        use_bias: whether the projections have biases.
        kernel_initializer, bias_initializer: as in `keras.layers.Dense`.
        kernel_regularizer, bias_regularizer: as in `keras.layers.Dense`.
        kernel_constraint, bias_constraint: as in `keras.layers.Dense`.
        seed: seed of the dropout.

    Call arguments:
        - `query`, `value`, `key`: float tensors `[B, T, D]`, `[B, S, D_value]`
          and `[B, S, D_key]`. `value` defaults to `query`, `key` to `value`.
        - `query_mask`, `value_mask`, `key_mask`: bool or int tensors `[B, T]`,
          `[B, S]` and `[B, S]`, 1 = attend; a masked query position attends to
          nothing. Default: the implicit Keras masks of their tensors.
        - `attention_mask`: bool or int tensor `[T, S]`, `[B, T, S]` or
          `[B, N, T, S]` (each dimension may be 1), 1 = attend.
        - `return_attention_scores`: also return the scores `[B, N, T, S]`
          before dropout.
        - `use_causal_mask`: position `i` attends only to positions `j <= i`.
        - `packing`: a `keras_fixedhead.packing.Packing`. With it, `query` holds
          only the real tokens of a padded batch, `[P, D]`, and attends to
          itself; the output is `[P, D_out]`.
        - `query_packing`: a `Packing`, together with `packing`: `value` holds
          the real tokens, `query` the tokens `[Q, D]` that `query_packing`
          describes; the output is `[Q, D_out]`.
        - `cache`: float tensor `[B, 2, S, W]`, the keys and values of a
          sequence of length S. `query`, `key` and `value` then hold a part of
          that sequence, which starts at `cache_update_index`, an int scalar.
          The layer writes the part into the cache and attends to the whole
          cache: pass `use_causal_mask=True` to hide positions not written yet.
          Implicit masks are ignored.

    Returns:
        The output `[B, T, D_out]`; with `return_attention_scores=True` a
        tuple of the output and the scores; with `cache` a tuple that ends
        with the new cache. A position that may attend to nothing gets a zero
        context, hence the bias of `attention_output`.

    Raises:
        TypeError: if an argument has its name in Keras's layer, such as
            `key_dim`.
        ValueError: if an argument is out of range, a shape does not fit, the
            sequence length is needed and unknown, a mask holds floats, or
            call arguments exclude each other.

    Example:

    ```python
    inputs = keras.Input((128, 64))
    # 7 heads of 128, although d = 64
    outputs = FixedMultiHeadAttention(num_heads=7)(inputs, inputs)
    ```

    Source: equation 9 of https://arxiv.org/abs/2002.07028.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int | Sequence[int] | None = None,
        attention_window: int | None = None,
        attention_scale: float | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_dim: int | None = None,
        kernel_initializer: str | dict | Callable = "glorot_uniform",
        bias_initializer: str | dict | Callable = "zeros",
        kernel_regularizer: str | dict | Callable | None = None,
        bias_regularizer: str | dict | Callable | None = None,
        kernel_constraint: str | dict | Callable | None = None,
        bias_constraint: str | dict | Callable | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        refuse_keras_names(kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = positive_int("num_heads", num_heads)
        self.head_size = check_head_size(head_size, self.num_heads)
        self.attention_window = positive_int(
            "attention_window", attention_window, optional=True
        )
        if attention_scale is not None and not 0 < attention_scale < math.inf:
            raise ValueError(
                "`attention_scale` must be above 0, or None for "
                f"1 / sqrt(head_size). Received: {attention_scale!r}"
            )
        self.attention_scale = attention_scale
        self.dropout = dropout
        self.use_bias = use_bias
        self.output_dim = positive_int("output_dim", output_dim, optional=True)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = seed
        self.dropout_layer = keras.layers.Dropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
        )

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """One size per head, once the layer is built."""
        if isinstance(self.head_size, tuple):
            return self.head_size
        return (self.head_size,) * self.num_heads

    @property
    def attention_scales(self) -> tuple[float, ...]:
        """One scale per head, once the layer is built."""
        if self.attention_scale is not None:
            return (self.attention_scale,) * self.num_heads
        return tuple(1.0 / math.sqrt(size) for size in self.head_sizes)

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        shapes = {"query": query_shape, "key": key_shape, "value": value_shape}
        for name, shape in shapes.items():
            if len(shape) != 3:
                raise ValueError(
                    f"`{name}` must have rank 3, [batch, length, embedding "
                    f"size]. Received: {name} of shape {shape}"
                )
        if self.head_size is None:
            if query_shape[1] is None:
                raise ValueError(
                    "`head_size=None` takes the sequence length of `query`, "
                    "which is unknown here. Pass `head_size` or give the input "
                    f"a static length. Received: query shape {query_shape}"
                )
            self.head_size = query_shape[1]
        width = sum(self.head_sizes)
        for name, shape in shapes.items():
            setattr(self, name, self._projection(name, shape, width))
        self.attention_output = self._projection(
            "attention_output",
            (*query_shape[:-1], width),
            self.output_dim or query_shape[-1],
        )
        self.built = True

    def __call__(self, query, value=None, *args, **kwargs):
        # Keras passes `call` the implicit masks of named inputs. A cache is
        # longer than the query's mask, and packed tokens have no mask.
        special = kwargs.get("cache") is not None or kwargs.get("packing")
        if value is None and not special:
            value = query
        return super().__call__(query, value, *args, **kwargs)

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        packing: Packing | None = None,
        query_packing: Packing | None = None,
        cache: Tensor | None = None,
        cache_update_index: int | Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        masks = {
            "query_mask": query_mask,
            "value_mask": value_mask,
            "key_mask": key_mask,
        }
        positions = bool(self.attention_window or use_causal_mask)
        others = {"cache": cache, "key": key, **masks}
        check_packing(packing, query_packing, value, positions, others)
        value = query if value is None else value
        key = value if key is None else key
        # [B, T, W], [B, S, W], [B, S, W]
        query, key, value = self.query(query), self.key(key), self.value(value)
        if cache is not None:
            width = sum(self.head_sizes)
            check_cache(cache, cache_update_index, width, key.shape[1])
            cache = write_cache(
                cache, cache_update_index, ops.stack((key, value), axis=1)
            )
            key, value = cache[:, 0], cache[:, 1]
        if packing is not None:
            query_packing = query_packing or packing
            query = query_packing.pad(query)
            key, value = packing.pad(key), packing.pad(value)
            masks = {"value_mask": packing.padding_mask}
        mask = combine_attention_masks(
            ops.shape(query)[1],
            ops.shape(value)[1],
            **masks,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            attention_window=self.attention_window,
            query_start=0 if cache is None else cache_update_index,
        )
        context, scores = multi_head_attention(
            query,
            key,
            value,
            self.head_sizes,
            mask=mask,
            dropout=functools.partial(self.dropout_layer, training=training),
            scale=self.attention_scale,
        )
        if query_packing is not None:
            context = query_packing.pack(context)
        outputs = [self.attention_output(context)]
        if return_attention_scores:
            outputs.append(scores)
        if cache is not None:
            outputs.append(cache)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> Shape:
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def _projection(self, name, shape, units):
        projection = keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            # A second use of one initializer would return the same values.
            kernel_initializer=self.kernel_initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            dtype=self.dtype_policy,
            name=name,
        )
        projection.build(shape)
        return projection
