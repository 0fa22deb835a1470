"""The encoder: BERT's shape around attention heads of a fixed size.

Shape letters: B batch, T sequence length, D embedding size (`hidden_dim`),
P real tokens of a packed batch.
"""

import keras
import keras_hub
from keras import ops

from keras_fixedhead.packing import Packing
from keras_fixedhead.transformer_block import FixedHeadTransformerBlock


def kernel_initializer():
    # BERT's (Devlin et al. 2018).
    return keras.initializers.TruncatedNormal(stddev=0.02)


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadBackbone(keras_hub.models.Backbone):
    """A BERT encoder whose head size is not tied to its embedding size.

    Token, position and segment embeddings, a norm, Transformer blocks, and
    optionally BERT's pooler. With `head_size = hidden_dim // num_heads` and
    the same weights it computes what `keras_hub.models.BertBackbone` does.

    Args:
        vocabulary_size: int. The number of token ids.
        num_layers: int. The number of Transformer blocks.
        num_heads: int. The number of attention heads in each block.
        hidden_dim: int. The embedding size; the heads need not divide it.
        intermediate_dim: int. The width of the feed-forward layers.
        head_size: int, a sequence of `num_layers` ints (one per block), or
            `None` for `max_sequence_length`, the paper's choice.
        attention_window: int or `None`. See `FixedMultiHeadAttention`.
        attention_scale: float or `None`. See `FixedMultiHeadAttention`.
        dropout: float. Dropout rate of embeddings, attention and blocks.
        max_sequence_length: int. The longest sequence there are position
            embeddings for.
        num_segments: int. The number of segment ids.
        activation: str. `"gelu_approximate"` (tanh, as the original BERT) or
            `"gelu"` (erf, as Hugging Face's).
        layer_norm_epsilon: float. Epsilon of every norm.
        pooler: bool. Whether there is a `pooled_output`: a dense layer with
            tanh on the first token.
        causal: bool. Whether tokens attend only to those before them, and to
            themselves, as in a language model (`FixedHeadCausalLM`).
        dtype: str or `keras.DTypePolicy`.
        **kwargs: `name`, `trainable`, as in `keras.Model`.

    Call arguments:
        inputs: a dictionary of int tensors `[B, T]`: `token_ids`,
            `segment_ids` and `padding_mask` (1 = real token).

    Returns:
        A dictionary: `sequence_output` `[B, T, D]` and, with a pooler,
        `pooled_output` `[B, D]`. What stands at padding positions has no
        meaning.

    Raises:
        TypeError: if there is no such argument.
        ValueError: if `head_size` is a sequence of another length than
            `num_layers`, a size is not a positive integer, the scale not a
            positive number, or a causal backbone is to have a pooler, whose
            first token sees no other.

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
        vocabulary_size,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        head_size=None,
        attention_window=None,
        attention_scale=None,
        dropout=0.1,
        max_sequence_length=512,
        num_segments=2,
        activation="gelu_approximate",
        layer_norm_epsilon=1e-12,
        pooler=False,
        causal=False,
        dtype=None,
        **kwargs,
    ):
        refuse_unknown_arguments(self, kwargs)
        if causal and pooler:
            raise ValueError(
                "The pooler sees the first token, and that no other where "
                "`causal=True`. Make the backbone with pooler=False. "
                f"Received: pooler={pooler!r}"
            )
        head_sizes = _head_size_per_layer(
            head_size, num_layers, max_sequence_length
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
        # Keras would compute logits in float32, whatever the policy, where
        # another layer or model calls it.
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
        self.pooled_dense = (
            keras.layers.Dense(
                hidden_dim,
                kernel_initializer=kernel_initializer(),
                activation="tanh",
                dtype=dtype,
                name="pooled_dense",
            )
            if pooler
            else None
        )

        # === Functional Model ===
        inputs = {
            name: keras.Input(shape=(None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask")
        }
        tokens = self.token_embedding(inputs["token_ids"])
        positions = self.position_embedding(tokens)
        segments = self.segment_embedding(inputs["segment_ids"])
        x = self.embeddings_add((tokens, positions, segments))
        x = self.embeddings_layer_norm(x)
        x = self.embeddings_dropout(x)
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
        inputs,
        training=False,
        fixed_size=False,
        return_projections=False,
    ):
        """Encodes the real tokens only; padding costs nothing but attention.

        Equal to calling the model, at the real tokens. For eager mode and
        TensorFlow graphs; `jax.jit` needs fixed sizes and hence the model
        itself. The pooler is not run.

        Args:
            inputs: the model's inputs, a dictionary of int tensors `[B, T]`.
            training: bool. Whether dropout is applied.
            fixed_size: bool. See `Packing`.
            return_projections: bool. Also return what the last block's
                attention computes first.

        Returns:
            The encoded tokens `[P, D]` and the `Packing` whose `pad` brings
            them to `[B, T, D]`; with `return_projections` also a dictionary
            of `query`, `key` and `value`, all heads side by side, `[P, W]`.
        """

        def encode(packing):
            x = self._embed_packed(inputs, packing, training)
            *layers, last = self.transformer_layers
            options = {
                "packing": packing,
                "use_causal_mask": self.causal,
                "training": training,
            }
            for layer in layers:
                x = layer(x, **options)
            encoded = last(x, **options)
            if not return_projections:
                return encoded, {}
            return encoded, {
                name: getattr(last.attention, name)(x)
                for name in ("query", "key", "value")
            }

        packing = Packing(inputs["padding_mask"], fixed_size)
        # Keras cannot add empty tensors of a static shape.
        empty = 0 in packing.padding_mask.shape
        if training or fixed_size or empty:
            encoded, projections = encode(packing)
        else:
            # Without padding, as in a single query, packing only costs.
            encoded, projections = _cond(
                ops.all(packing.padding_mask),
                lambda: encode(Packing(packing.padding_mask, fixed_size=True)),
                lambda: encode(packing),
            )
        if not return_projections:
            return encoded, packing
        return encoded, packing, projections

    def encode_positions(
        self, inputs, positions, real=None, training=False, fixed_size=False
    ):
        """Encodes the tokens at some positions.

        What `encode_packed` returns there, but the last block attends from
        these positions only, and its feed-forward layer sees no others.

        Args:
            inputs: the model's inputs, a dictionary of int tensors `[B, T]`.
            positions: int tensor `[B, K]`.
            real: bool tensor `[B, K]`, which of the positions to encode, or
                `None` for all.
            training: bool. Whether dropout is applied.
            fixed_size: bool. See `Packing`.

        Returns:
            The encoded tokens `[Q, D]` and the `Packing` whose `pad` brings
            them to `[B, K, D]`.
        """
        packing = Packing(inputs["padding_mask"], fixed_size)
        if real is None:
            selection = Packing(ops.ones_like(positions), fixed_size=True)
        else:
            selection = Packing(real)
        x = self._embed_packed(inputs, packing, training)
        *layers, last = self.transformer_layers
        options = {
            "packing": packing,
            "use_causal_mask": self.causal,
            "training": training,
        }
        for layer in layers:
            x = layer(x, **options)
        if self.attention_window is not None or self.causal:
            # A window is around positions, and the past is before them: the
            # last block has to know where its queries are.
            x = last(x, **options)
            return selection.pack(packing.take(x, positions)), selection
        x = last(
            x,
            queries=selection.pack(packing.take(x, positions)),
            query_packing=selection,
            **options,
        )
        return x, selection

    def _embed_packed(self, inputs, packing, training):
        """Embeddings of the real tokens, `[P, D]`."""
        batch, length = ops.shape(inputs["token_ids"])
        positions = ops.broadcast_to(
            ops.expand_dims(ops.arange(length), 0), (batch, length)
        )
        tokens = self.token_embedding(packing.pack(inputs["token_ids"]))
        table = ops.cast(
            self.position_embedding.position_embeddings, tokens.dtype
        )
        positions = ops.take(table, packing.pack(positions), axis=0)
        segments = self.segment_embedding(packing.pack(inputs["segment_ids"]))
        x = self.embeddings_add((tokens, positions, segments))
        x = self.embeddings_layer_norm(x)
        return self.embeddings_dropout(x, training=training)

    def get_config(self):
        config = super().get_config()
        config.update(
            vocabulary_size=self.vocabulary_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            hidden_dim=self.hidden_dim,
            intermediate_dim=self.intermediate_dim,
            head_size=(
                list(self.head_size)
                if isinstance(self.head_size, (list, tuple))
                else self.head_size
            ),
            attention_window=self.attention_window,
            attention_scale=self.attention_scale,
            dropout=self.dropout,
            max_sequence_length=self.max_sequence_length,
            num_segments=self.num_segments,
            activation=self.activation,
            layer_norm_epsilon=self.layer_norm_epsilon,
            pooler=self.pooler,
            causal=self.causal,
        )
        return config


def _cond(condition, true_fn, false_fn):
    """`ops.cond`, for functions whose shapes depend on data."""
    if keras.backend.backend() == "jax":
        # It would trace both functions, in eager mode too.
        return true_fn() if condition else false_fn()
    return ops.cond(condition, true_fn, false_fn)


def refuse_unknown_arguments(model, arguments):
    """Raises TypeError where `keras.Model` would ignore what is misspelled."""
    unknown = sorted(arguments.keys() - {"name", "trainable", "dtype"})
    if unknown:
        raise TypeError(
            f"{type(model).__name__} has no argument "
            f"{', '.join(f'`{name}`' for name in unknown)}. See its docstring "
            "for those it has."
        )


def backbone_of(model):
    """The `FixedHeadBackbone` that a model is or, as a task, holds.

    Raises:
        ValueError: if it is or holds none.
    """
    backbone = getattr(model, "backbone", model)
    if not isinstance(backbone, FixedHeadBackbone):
        raise ValueError(
            "`model` must be a FixedHeadBackbone or a task that holds one, "
            "such as a FixedHeadTextEmbedder; "
            "keras_fixedhead.convert.from_bert_backbone makes one of a BERT. "
            f"Received: model={model!r}"
        )
    return backbone


def input_batches(inputs, batch_size):
    """Yields a backbone's inputs, a few rows at a time.

    Args:
        inputs: a dictionary with the backbone's inputs, int arrays `[N, T]`;
            what else it holds is left out.
        batch_size: int. The most rows of a batch.

    Yields:
        A dictionary of int arrays `[B, T]`, and where the real tokens are, a
        bool array `[B, T]`.

    Raises:
        ValueError: if an input is missing, there is no real token, or
            `batch_size` is not positive.
    """
    names = ("token_ids", "segment_ids", "padding_mask")
    if not isinstance(inputs, dict) or not set(names) <= inputs.keys():
        received = sorted(inputs) if isinstance(inputs, dict) else inputs
        raise ValueError(
            "`inputs` must be a dictionary with token_ids, segment_ids and "
            f"padding_mask. Received: {received!r}"
        )
    if batch_size < 1:
        raise ValueError(
            "`batch_size` must be a positive integer. "
            f"Received: batch_size={batch_size!r}"
        )
    arrays = {
        name: ops.convert_to_numpy(inputs[name]).astype("int32")
        for name in names
    }
    if not arrays["padding_mask"].any():
        raise ValueError(
            "`inputs` must hold a real token, where padding_mask is 1. "
            f"Received: {len(arrays['padding_mask'])} rows without"
        )
    for start in range(0, len(arrays["token_ids"]), batch_size):
        batch = {k: v[start : start + batch_size] for k, v in arrays.items()}
        yield batch, batch["padding_mask"] != 0


def _head_size_per_layer(head_size, num_layers, max_sequence_length):
    if head_size is None:
        head_size = max_sequence_length
    if not isinstance(head_size, (list, tuple)):
        return [head_size] * num_layers
    if len(head_size) != num_layers:
        raise ValueError(
            "`head_size` as a sequence holds one size for each of the "
            f"{num_layers} layers. Received {len(head_size)}: "
            f"head_size={head_size!r}"
        )
    return head_size
