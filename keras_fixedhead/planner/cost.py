"""The shape of an encoder, and what it costs: operations, bytes and depth.

Operations are those of matrix products alone, as usual; a multiplication with
its addition counts as two.

Shape letters: B batch, D embedding size, N heads, H head size, W total width
of a layer's heads, F feed-forward width, T sequence length, L layers, P masked
positions of a sequence, V vocabulary size.
"""

import dataclasses
import itertools
import math
import typing

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.theory import depth_threshold, fitted_depth_threshold

if typing.TYPE_CHECKING:
    from keras_fixedhead.backbone import FixedHeadBackbone

# What has a shape.
Shaped: typing.TypeAlias = "EncoderShape | FixedHeadBackbone"

# BERT masks and predicts this fraction of the tokens.
_PREDICTED = 0.15
_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class EncoderShape:
    """The sizes of a `FixedHeadBackbone`, named like its arguments.

    `head_size` may also have a sequence of one int per head for a layer.
    """

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    head_size: int | tuple | None = None
    max_sequence_length: int = 512
    num_segments: int = 2
    dropout: float = 0.1
    pooler: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in ("head_size", "dropout", "pooler"):
                positive_int(name, value)
        lengths = [len(layer) for layer in self.head_sizes]
        if lengths != [self.num_heads] * self.num_layers:
            raise ValueError(
                "`head_size` must be a positive integer, or one for each of "
                f"the {self.num_layers} layers, each an integer or one for "
                f"each of the {self.num_heads} heads. "
                f"Received: head_size={self.head_size!r}"
            )
        for size in itertools.chain(*self.head_sizes):
            positive_int("head_size", size)

    @classmethod
    def of(cls, model: Shaped) -> "EncoderShape":
        if isinstance(model, cls):
            return model
        names = [field.name for field in dataclasses.fields(cls)]
        if not all(hasattr(model, name) for name in names):
            raise ValueError(
                "`model` must be an EncoderShape or a FixedHeadBackbone. "
                f"Received: model={model!r}"
            )
        return cls(**{name: getattr(model, name) for name in names})

    @property
    def head_sizes(self) -> tuple[tuple[int, ...], ...]:
        def repeated(value, count):
            many = isinstance(value, (list, tuple))
            return tuple(value) if many else (value,) * count

        sizes = self.head_size
        if sizes is None:
            sizes = self.max_sequence_length
        return tuple(
            repeated(layer, self.num_heads)
            for layer in repeated(sizes, self.num_layers)
        )

    @property
    def standard_heads(self) -> bool:
        sizes = itertools.chain(*self.head_sizes)
        return all(size * self.num_heads == self.hidden_dim for size in sizes)

    @property
    def attention_widths(self) -> tuple[int, ...]:
        """W of each layer."""
        return tuple(map(sum, self.head_sizes))


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """The parameters of a `FixedHeadBackbone` and of its pre-training heads."""

    token_embedding: int
    position_embedding: int
    segment_embedding: int
    norms: int  # of the embeddings and of the layers, 2 D each
    query: int
    key: int
    value: int
    attention_output: int
    feed_forward: int
    pooler: int
    masked_lm_head: int  # a dense layer, a norm, and a bias for each word
    next_sentence_head: int  # on the pooler

    @classmethod
    def of(cls, model: Shaped) -> "ParameterCount":
        shape = EncoderShape.of(model)
        d, layers = shape.hidden_dim, shape.num_layers
        norm = 2 * d
        width = sum(shape.attention_widths)  # of all layers
        projection = (d + 1) * width
        inner = shape.intermediate_dim
        return cls(
            token_embedding=shape.vocabulary_size * d,
            position_embedding=shape.max_sequence_length * d,
            segment_embedding=shape.num_segments * d,
            norms=(1 + 2 * layers) * norm,
            query=projection,
            key=projection,
            value=projection,
            attention_output=(width + layers) * d,
            feed_forward=layers * ((d + 1) * inner + (inner + 1) * d),
            pooler=(d + 1) * d if shape.pooler else 0,
            masked_lm_head=(d + 1) * d + norm + shape.vocabulary_size,
            next_sentence_head=(d + 1) * 2 if shape.pooler else 0,
        )

    @property
    def encoder(self) -> int:
        """Those of the `FixedHeadBackbone` alone."""
        return self.total - self.masked_lm_head - self.next_sentence_head

    @property
    def total(self) -> int:
        """All, with both pre-training heads: what the paper counts."""
        return sum(dataclasses.astuple(self))


def encoder_flops(
    model: Shaped, sequence_length: int, last_block_share: float = 1
) -> float:
    """Floating-point operations of encoding one token.

    Per layer 8 D N H for the projections of attention, 4 T N H for its scores
    and sums, and 4 D F for the feed-forward layers. The last block may compute
    only `last_block_share` of the tokens, as in `encode_positions`.
    """
    shape = EncoderShape.of(model)
    d = shape.hidden_dim
    shares = [1] * (shape.num_layers - 1) + [last_block_share]
    return 4 * sum(
        d * width  # keys and values
        + share * ((d + sequence_length) * width + d * shape.intermediate_dim)
        for width, share in zip(shape.attention_widths, shares)
    )


def masked_lm_flops(model: Shaped) -> int:
    shape = EncoderShape.of(model)
    return 2 * shape.hidden_dim * (shape.hidden_dim + shape.vocabulary_size)


def activation_bytes(
    shape: EncoderShape,
    batch_size: int,
    sequence_length: int,
    predictions_per_sequence: int = 0,
) -> int:
    """Bytes of activations at the peak of a training step, in float32.

    `batch_size` is B on one device, `predictions_per_sequence` P, or 0 for the
    backbone alone. Any dropout above 0 costs the same. At the peak,
    the end of the forward pass, the step keeps

    `4 (B T (12 L D + 4 sum(W) + 3 L F + 6 D) + (3 L + 1) B N T^2
    + B P (7 D + 3 V))`, and with dropout
    `8 (B T (2 L + 1) D + L B N T^2)` more.

    XLA for CPUs (JAX 0.10.2, `temp_size_in_bytes`) allots as much, mostly to
    within 2%, for steps with B T >= 4096 (docs/results.md); up to 16%
    less for fewer tokens, 26% less and more for gradients without an update
    where B T <= 2 D, 7% more for GELU with erf, and 35% more for W = 128 F.
    mixed_bfloat16 takes as much as float32 on CPUs. XLA for TPUs (v5e, libtpu
    0.0.52), compiled and not run, allots a quarter of it for 2 layers without
    dropout. Other devices were not measured.
    """
    positive_int("batch_size", batch_size)
    longest = shape.max_sequence_length
    positive_int("sequence_length", sequence_length, most=longest)
    positive_int("predictions_per_sequence", predictions_per_sequence, 0)
    tokens = batch_size * sequence_length
    predictions = batch_size * predictions_per_sequence
    layers, width = shape.num_layers, shape.hidden_dim
    norms = 2 * layers + 1  # two of each layer, one of the embeddings
    scores = batch_size * shape.num_heads * sequence_length**2  # [B, N, T, T]
    # The input of a norm, that less the mean, the output; and the inverse
    # deviation, the scale and their product, spread over all numbers.
    kept = norms * 6 * tokens * width
    # Scaled queries, keys, values, and the context.
    kept += 4 * tokens * sum(shape.attention_widths)
    # Exponentials of the logits, their sums spread over them, and the weights
    # of the values; once for all layers, which queries may attend at all.
    kept += (3 * layers + 1) * scores
    # Before the activation (tanh's GELU), the tanh, and after it.
    kept += 3 * layers * tokens * shape.intermediate_dim
    if shape.dropout:
        # Two words of JAX's generator (Threefry) for each number that may be
        # dropped: one tensor at each norm, and the scores.
        kept += 2 * (norms * tokens * width + layers * scores)
    # Gathered positions, three of the dense layer, two products and the output
    # of the norm; the logits, those of the labels, and the gradient.
    kept += predictions * (7 * width + 3 * shape.vocabulary_size)
    return _FLOAT_BYTES * int(kept)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a shape costs at a sequence length.

    Attributes:
        forward_flops: of one sequence, by the backbone.
        training_flops: of one sequence; gradients cost twice as much again.
        activation_bytes: the peak of a step of pre-training with `batch_size`
            sequences on one device, which predicts 15% of the tokens.
        state_bytes: weights, gradients and AdamW's moments, in float32, both
            pre-training heads included.
        weight_bytes: by dtype, the encoder's weights. `"int8"` is what Keras's
            `quantize("int8")` leaves.
        document_bytes: by dtype, one embedding of an index.
        heads: of all layers together.
        heads_under_length: how many are smaller than the sequence.
    """

    shape: EncoderShape
    sequence_length: int
    parameters: ParameterCount
    forward_flops: int
    training_flops: int
    batch_size: int
    activation_bytes: int
    state_bytes: int
    weight_bytes: dict[str, int]
    document_bytes: dict[str, int]
    heads: int
    heads_under_length: int
    smallest_head_size: int
    depth_threshold: float
    fitted_depth_threshold: float

    @classmethod
    def of(
        cls, model: Shaped, sequence_length: int, batch_size: int = 32
    ) -> "Cost":
        shape = EncoderShape.of(model)
        parameters = ParameterCount.of(shape)
        sizes = [size for layer in shape.head_sizes for size in layer]
        d = shape.hidden_dim
        forward = int(sequence_length * encoder_flops(shape, sequence_length))
        predictions = math.ceil(_PREDICTED * sequence_length)
        return cls(
            shape=shape,
            sequence_length=sequence_length,
            parameters=parameters,
            forward_flops=forward,
            training_flops=3 * forward,
            batch_size=batch_size,
            activation_bytes=activation_bytes(
                shape, batch_size, sequence_length, predictions
            ),
            # A weight has a gradient and two moments.
            state_bytes=4 * _FLOAT_BYTES * parameters.total,
            weight_bytes={
                "float32": _FLOAT_BYTES * parameters.encoder,
                "bfloat16": 2 * parameters.encoder,
                "int8": _int8_bytes(shape, parameters),
            },
            document_bytes={"float32": 4 * d, "float16": 2 * d, "int8": d},
            heads=len(sizes),
            heads_under_length=sum(size < sequence_length for size in sizes),
            smallest_head_size=min(sizes),
            depth_threshold=depth_threshold(d),
            fitted_depth_threshold=fitted_depth_threshold(d),
        )

    @property
    def embedding_under_length(self) -> bool:
        """Whether D, the highest rank of any head's logits, is under T."""
        return self.shape.hidden_dim < self.sequence_length

    @property
    def bottlenecked(self) -> bool:
        return self.heads_under_length > 0 or self.embedding_under_length

    def as_dict(self) -> dict:
        """The record as JSON values; `parameters` is the paper's count."""
        record = dataclasses.asdict(self)
        parts = record.pop("parameters")
        return {
            "parameters": self.parameters.total,
            "encoder_parameters": self.parameters.encoder,
            "parameters_by_part": parts,
            **record,
            "embedding_under_length": self.embedding_under_length,
            "bottlenecked": self.bottlenecked,
        }


def _int8_bytes(shape, parameters):
    d, layers = shape.hidden_dim, shape.num_layers
    width, inner = sum(shape.attention_widths), shape.intermediate_dim
    rows = shape.vocabulary_size + shape.num_segments
    pooled = d if shape.pooler else 0
    # Kernels and two tables; each of their outputs and rows has a scale.
    small = d * (rows + 4 * width + 2 * inner * layers + pooled)
    scales = rows + 3 * width + (2 * d + inner) * layers + pooled
    return small + _FLOAT_BYTES * (scales + parameters.encoder - small)
