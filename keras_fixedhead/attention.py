"""Multi-head attention whose head size does not depend on the embedding size.

Shape letters: B batch, T query length, S key length, D embedding size,
N heads, H head size, W total width of all heads (N * H where heads are equal).

The paper (Bhojanapalli et al. 2020) writes sequences as columns; here they are
rows. Its V_q^i, V_k^i, V_v^i are the i-th block of H columns of the `query`,
`key` and `value` kernels, transposed; its d_p is H, its V_o the transposed
`attention_output` kernel, and its context P the transposed attention scores.
"""

import inspect
import itertools
import math
import numbers

import keras
from keras import ops

from keras_fixedhead.attention_checks import (
    check_attention_scale,
    check_cache,
    check_head_size,
    check_input_shapes,
    positive_int,
    refuse_keras_names,
)
from keras_fixedhead.attention_mask import combine_attention_masks


def dot_product_attention(
    query, key, value, mask=None, dropout=None, scale=None
):
    """Attends with heads of one size, and says what it attended to.

    A query position that may attend to nothing gets the zero vector and zero
    scores: the same finite answer whatever the dtype or the backend.

    Args:
        query: float tensor `[B, T, N, H]`.
        key: float tensor `[B, S, N, H]`.
        value: float tensor `[B, S, N, H]`.
        mask: bool tensor that broadcasts to `[B, N, T, S]`, `True` where a
            query position may attend to a key position, or `None`.
        dropout: a function applied to the scores before they weigh `value`,
            or `None`.
        scale: float. What the logits are multiplied by; `None` means
            `1 / sqrt(H)`.

    Returns:
        The context `[B, T, N, H]` and the scores before dropout
        `[B, N, T, S]`, both in the dtype of `query`. Each row of scores sums
        to 1 (to 0 where everything is masked). The softmax is computed in
        float32 at least.

    Source: equations (1) and (9) of https://arxiv.org/abs/2002.07028.
    """
    dtype = keras.backend.standardize_dtype(query.dtype)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    # TensorFlow's cast would make float32 of a number first.
    query = query * ops.convert_to_tensor(scale, dtype)
    logits = ops.einsum("btnh,bsnh->bnts", query, key)
    if dtype in ("float16", "bfloat16"):
        logits = ops.cast(logits, "float32")
    if mask is None:
        scores = ops.softmax(logits)
    else:
        allowed = ops.cast(mask, logits.dtype)
        # exp() of a masked logit is exactly 0 next to one that is not masked;
        # where all are, what the softmax returns is multiplied by 0.
        scores = ops.softmax(logits + (1.0 - allowed) * -1e9)
        anywhere = ops.any(mask, axis=-1, keepdims=True)
        scores = scores * ops.cast(anywhere, logits.dtype)
    scores = ops.cast(scores, dtype)
    weights = scores if dropout is None else dropout(scores)
    return ops.einsum("bnts,bsnh->btnh", weights, value), scores


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedMultiHeadAttention(keras.layers.Layer):
    """Multi-head attention with a head size of its own choosing.

    In the usual layer the head size is the embedding size divided by the
    number of heads. Once that is under the sequence length, a head cannot
    represent every attention pattern (Theorem 1 of the paper). Here the head
    size is an argument, by default the sequence length, and the number of
    heads need not divide the embedding size:

    `softmax((X V_q)(X V_k)^T / sqrt(head_size)) X V_v` for each head, the
    heads concatenated and projected by `V_o` (equation 9). With an
    `attention_scale` that takes the place of `1 / sqrt(head_size)`.

    The layer takes the place of `keras.layers.MultiHeadAttention`: same call
    arguments, same implicit Keras masks.
    `keras_fixedhead.convert.from_multi_head_attention` makes one of a built
    Keras layer. Its weights, which keep their names and shapes:
    `query/kernel`, `key/kernel`, `value/kernel` of shape `(D, W)` and
    `attention_output/kernel` of shape `(W, D_out)`, heads side by side, each
    with a `bias`. The four are plain `keras.layers.Dense`, so Keras's LoRA
    (`layer.query.enable_lora(rank)`, a KerasHub backbone's `enable_lora`) and
    `model.quantize("int8")` work on them.

    Args:
        num_heads: int. The number of attention heads.
        head_size: int, a sequence of `num_heads` ints (one size per head), or
            `None`. `None` takes the static length of the query sequence when
            the layer is built, and keeps it from then on.
        attention_window: int or `None`. Position `i` attends only to the
            positions `j` with `|i - j| < attention_window`.
        attention_scale: float above 0, or `None`. The logits of attention
            are multiplied by it; `None` means `1 / sqrt(head_size)` of each
            head.
        dropout: float in `[0, 1)`. Dropout rate of the attention scores.
        use_bias: bool. Whether the four projections have a bias.
        output_dim: int or `None`. The size of the output; `None` means the
            query's.
        kernel_initializer: initializer of the projections' kernels.
        bias_initializer: initializer of the projections' biases.
        kernel_regularizer: regularizer of the projections' kernels.
        bias_regularizer: regularizer of the projections' biases.
        kernel_constraint: constraint on the projections' kernels.
        bias_constraint: constraint on the projections' biases.
        seed: int or `None`. Seed of the dropout.
        **kwargs: `name`, `dtype`, `trainable`, as in `keras.layers.Layer`.

    Call arguments:
        query: float tensor `[B, T, D]`.
        value: float tensor `[B, S, D_value]`; `None` means `query`.
        key: float tensor `[B, S, D_key]`; `None` means `value`.
        query_mask: bool or int tensor `[B, T]`, 1 = attend. A masked query
            position attends to nothing. The default of this and the next two
            arguments is the implicit Keras mask of their tensor.
        value_mask: bool or int tensor `[B, S]`, 1 = attend.
        key_mask: bool or int tensor `[B, S]`, 1 = attend.
        attention_mask: bool or int tensor `[T, S]`, `[B, T, S]` or
            `[B, N, T, S]` (each dimension may be 1), 1 = attend.
        return_attention_scores: bool. Also return the scores
            `[B, N, T, S]`, as they are before dropout.
        training: bool. Whether dropout is applied.
        use_causal_mask: bool. Position `i` attends only to positions
            `j <= i`.
        packing: a `keras_fixedhead.packing.Packing` or `None`. With it,
            `query` holds only the real tokens of a padded batch, `[P, D]`,
            attends to itself, and the output is `[P, D_out]`.
        query_packing: a `Packing` or `None`. With it, and `packing`, `value`
            holds the real tokens, and `query` others `[Q, D]`, of a batch
            that `query_packing` describes; the output is `[Q, D_out]`.
        cache: float tensor `[B, 2, S, W]`, the keys and the values of a
            sequence of length S, or `None`. With it, `query`, `key` and
            `value` hold a part of that sequence; its keys and values are
            written into the cache, of which all is attended to that the masks
            allow: pass `use_causal_mask=True` for what is not written yet.
            Masks of keys and values are `[B, S]`; implicit ones are not
            looked for. For generation, not for training.
        cache_update_index: int or int scalar tensor, where in the sequence
            that part starts. Comes with `cache`.

    Returns:
        The output `[B, T, D_out]`, with `return_attention_scores=True` a
        tuple of it and the scores, with `cache` one that ends with the new
        cache. A position that may attend to nothing gets a zero context,
        hence the bias of `attention_output`.

    Raises:
        TypeError: if an argument has the name it has in Keras's layer, such
            as `key_dim`.
        ValueError: if a size is not a positive integer, the scale not a
            positive number, the head sizes are not as many as the heads, the
            sequence length is needed and unknown, an input, mask or cache has
            a shape that does not fit, a mask holds floats, `packing` comes
            with a value, a key, a cache or a mask, `query_packing` with what
            it cannot be used with, only one of `cache` and
            `cache_update_index` is given, or what is new does not fit into
            the cache.

    Example:

    ```python
    inputs = keras.Input((128, 64))
    # 7 heads of 128, although d = 64
    outputs = FixedMultiHeadAttention(num_heads=7)(inputs, inputs)
    model = keras.Model(inputs, outputs)
    ```

    Source: https://arxiv.org/abs/2002.07028, section 3.
    """

    def __init__(
        self,
        num_heads,
        head_size=None,
        attention_window=None,
        attention_scale=None,
        dropout=0.0,
        use_bias=True,
        output_dim=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        seed=None,
        **kwargs,
    ):
        refuse_keras_names(kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = positive_int("num_heads", num_heads)
        self.head_size = check_head_size(head_size, self.num_heads)
        self.attention_window = (
            None
            if attention_window is None
            else positive_int("attention_window", attention_window)
        )
        self.attention_scale = check_attention_scale(attention_scale)
        if not isinstance(dropout, numbers.Real) or not 0 <= dropout < 1:
            raise ValueError(
                "`dropout` must be a number in [0, 1). "
                f"Received: dropout={dropout!r}"
            )
        self.dropout = dropout
        self.use_bias = use_bias
        self.output_dim = (
            None
            if output_dim is None
            else positive_int("output_dim", output_dim)
        )
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
    def head_sizes(self):
        """The size of each head, a tuple of `num_heads` ints (once built)."""
        if isinstance(self.head_size, tuple):
            return self.head_size
        return (self.head_size,) * self.num_heads

    @property
    def attention_scales(self):
        """What each head's logits are multiplied by, floats (once built)."""
        if self.attention_scale is not None:
            return (self.attention_scale,) * self.num_heads
        return tuple(1.0 / math.sqrt(size) for size in self.head_sizes)

    def build(self, query_shape, value_shape=None, key_shape=None):
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        shapes = {"query": query_shape, "key": key_shape, "value": value_shape}
        check_input_shapes(shapes)
        if self.head_size is None:
            if query_shape[1] is None:
                raise ValueError(
                    "`head_size=None` takes the sequence length of `query`, "
                    "which is unknown here. Pass `head_size` (the sequence "
                    "length the model is meant for) or give the input a "
                    f"static length. Received: query shape {query_shape}"
                )
            self.head_size = query_shape[1]
        width = sum(self.head_sizes)
        for name, shape in shapes.items():
            projection = self._projection(width, name)
            projection.build(shape)
            setattr(self, name, projection)
        self.attention_output = self._projection(
            self.output_dim or query_shape[-1], "attention_output"
        )
        self.attention_output.build((*query_shape[:-1], width))
        self.built = True

    def __call__(self, query, value=None, *args, **kwargs):
        # Keras hands `call` the implicit masks of the inputs that are named,
        # in compiled functions too. A cache is longer than the query's mask,
        # and packed tokens have none.
        longer = kwargs.get("cache") is not None
        if value is None and not longer and kwargs.get("packing") is None:
            value = query
        return super().__call__(query, value, *args, **kwargs)

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        packing=None,
        query_packing=None,
        cache=None,
        cache_update_index=None,
    ):
        if packing is not None:
            given = {
                "cache": cache,
                "key": key,
                "query_mask": query_mask,
                "value_mask": value_mask,
                "key_mask": key_mask,
            }
            if query_packing is None:
                given["value"] = value
            given = [name for name in given if given[name] is not None]
            if given:
                raise ValueError(
                    "With `packing` the real tokens attend to each other, and "
                    "it says which they are. Pass it without "
                    f"{', '.join(given)}, or pad the batch"
                )
        if query_packing is not None and (
            packing is None
            or value is None
            or self.attention_window
            or use_causal_mask
        ):
            raise ValueError(
                "`query_packing` needs `packing` and `value`, and an "
                "attention without window that is not causal. Received: "
                f"packing={packing}, value={value}, "
                f"attention_window={self.attention_window}, "
                f"use_causal_mask={use_causal_mask}"
            )
        if (cache is None) != (cache_update_index is None):
            raise ValueError(
                "`cache` and `cache_update_index`, where in it to write, come "
                f"together. Received: {'no' if cache is None else 'a'} cache, "
                f"cache_update_index={cache_update_index}"
            )
        value = query if value is None else value
        key = value if key is None else key
        if packing is None:
            check_input_shapes(
                {"query": query.shape, "value": value.shape, "key": key.shape}
            )
        # [B, T, W], [B, S, W], [B, S, W]
        query, key, value = self.query(query), self.key(key), self.value(value)
        if cache is not None:
            check_cache(
                cache.shape,
                sum(self.head_sizes),
                cache_update_index,
                key.shape[1],
            )
            cache = _write(
                cache, cache_update_index, ops.stack((key, value), axis=1)
            )
            key, value = cache[:, 0], cache[:, 1]
        if packing is not None:
            query_packing = query_packing or packing
            query = query_packing.pad(query)
            key, value = packing.pad(key), packing.pad(value)
            value_mask = packing.padding_mask
        mask = combine_attention_masks(
            (
                ops.shape(query)[0],
                self.num_heads,
                ops.shape(query)[1],
                ops.shape(value)[1],
            ),
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            attention_window=self.attention_window,
            query_start=0 if cache is None else cache_update_index,
        )
        context, scores = self._attend(query, key, value, mask, training)
        if packing is not None:
            context = query_packing.pack(context)
        outputs = [self.attention_output(context)]
        if return_attention_scores:
            outputs.append(scores)
        if cache is not None:
            outputs.append(cache)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _attend(self, query, key, value, mask, training):
        """Runs the heads, one `dot_product_attention` per run of equal sizes.

        Returns the context `[B, T, W]` and the scores `[B, N, T, S]`.
        """

        def drop(scores):
            return self.dropout_layer(scores, training=training)

        dropout = drop if self.dropout else None
        contexts, scores = [], []
        start, head = 0, 0
        for size, run in itertools.groupby(self.head_sizes):
            heads = len(tuple(run))
            stop = start + heads * size
            run_mask = mask
            if mask is not None and mask.shape[1] not in (1, None):
                run_mask = mask[:, head : head + heads]
            run_context, run_scores = dot_product_attention(
                *(
                    # [B, T, W] -> [B, T, heads, size]
                    ops.reshape(
                        x if heads == self.num_heads else x[..., start:stop],
                        (*ops.shape(x)[:2], heads, size),
                    )
                    for x in (query, key, value)
                ),
                mask=run_mask,
                dropout=dropout,
                scale=self.attention_scale,
            )
            # [B, T, heads, size] -> [B, T, heads * size]
            contexts.append(
                ops.reshape(run_context, (*ops.shape(query)[:2], heads * size))
            )
            scores.append(run_scores)
            start, head = stop, head + heads
        if len(contexts) == 1:
            return contexts[0], scores[0]
        return ops.concatenate(contexts, -1), ops.concatenate(scores, 1)

    def compute_output_shape(
        self, query_shape, value_shape=None, key_shape=None
    ):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def compute_output_spec(self, query, value=None, *args, **kwargs):
        # A subclass may leave most arguments to `**kwargs`.
        call = inspect.signature(FixedMultiHeadAttention.call).bind(
            self, query, value, *args, **kwargs
        )
        call.apply_defaults()
        cache = call.arguments["cache"]
        shapes = [self.compute_output_shape(query.shape)]
        if call.arguments["return_attention_scores"]:
            source = (query if value is None else value).shape[1]
            if cache is not None:
                source = cache.shape[2]
            shapes.append(
                (query.shape[0], self.num_heads, query.shape[1], source)
            )
        if cache is not None:
            shapes.append(cache.shape)
        outputs = tuple(
            keras.KerasTensor(shape, dtype=self.compute_dtype)
            for shape in shapes
        )
        return outputs[0] if len(outputs) == 1 else outputs

    def get_config(self):
        config = super().get_config()
        head_size = self.head_size
        config.update(
            dtype=serialize_dtype(self),
            num_heads=self.num_heads,
            head_size=(
                list(head_size) if isinstance(head_size, tuple) else head_size
            ),
            attention_window=self.attention_window,
            attention_scale=self.attention_scale,
            dropout=self.dropout,
            use_bias=self.use_bias,
            output_dim=self.output_dim,
            kernel_initializer=keras.initializers.serialize(
                self.kernel_initializer
            ),
            bias_initializer=keras.initializers.serialize(
                self.bias_initializer
            ),
            kernel_regularizer=keras.regularizers.serialize(
                self.kernel_regularizer
            ),
            bias_regularizer=keras.regularizers.serialize(
                self.bias_regularizer
            ),
            kernel_constraint=keras.constraints.serialize(
                self.kernel_constraint
            ),
            bias_constraint=keras.constraints.serialize(self.bias_constraint),
            seed=self.seed,
        )
        return config

    def _projection(self, units, name):
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            # An initializer object may be used once only: a second use would
            # give the same values.
            kernel_initializer=self.kernel_initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            dtype=self.dtype_policy,
            name=name,
        )


def _write(cache, index, part):
    """Puts a part `[B, 2, T, W]` into a cache `[B, 2, S, W]`, from `index`."""
    if keras.backend.backend() != "tensorflow":
        return ops.slice_update(cache, (0, 0, index, 0), part)
    # TensorFlow computes that one by XLA alone, which a model server has not.
    sizes = ops.shape(part)
    places = ops.meshgrid(
        *(ops.arange(size, dtype="int32") for size in sizes[:3]), indexing="ij"
    )
    places[2] += ops.cast(index, "int32")
    return ops.scatter_update(
        cache,
        ops.reshape(ops.stack(places, axis=-1), (-1, 3)),
        ops.reshape(part, (-1, sizes[3])),
    )


def serialize_dtype(layer):
    """The dtype policy of a composite layer, as its `get_config` needs it.

    `quantize` gives sublayers a policy of their own. A config that does not
    carry it would rebuild them in float, and loading would not find their
    weights.

    Args:
        layer: a `keras.layers.Layer` with sublayers.

    Returns:
        A serialized `keras.DTypePolicy`, or a `DTypePolicyMap` by path.
    """
    policy = layer.dtype_policy
    quantized = {
        sublayer.path: sublayer.dtype_policy
        for sublayer in layer._flatten_layers(include_self=False)
        if sublayer.quantization_mode is not None
    }
    if quantized and not isinstance(
        policy, keras.dtype_policies.DTypePolicyMap
    ):
        policy = keras.dtype_policies.DTypePolicyMap(policy.name, quantized)
    return keras.dtype_policies.serialize(policy)
