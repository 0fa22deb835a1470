"""What a shape costs: operations, bytes and depth.

Operations are those of matrix products alone, as usual; a multiplication with
its addition counts as two.

Shape letters: D embedding size, N heads, H head size, F feed-forward width,
T sequence length, V vocabulary size.
"""

import dataclasses
import math

from keras_fixedhead.planner.memory import activation_bytes, state_bytes
from keras_fixedhead.planner.shape import (
    EncoderShape,
    ParameterCount,
    check_length,
)
from keras_fixedhead.theory.depth import (
    depth_threshold,
    fitted_depth_threshold,
)

# BERT masks and predicts this fraction of the tokens.
_PREDICTED = 0.15


def encoder_flops(
    model, sequence_length: int, last_block_share: float = 1
) -> float:
    """Floating-point operations of encoding one token.

    The projections of attention 8 D N H, its scores and sums 4 T N H, the
    feed-forward layers 4 D F. `model` is an `EncoderShape` or a
    `FixedHeadBackbone`. The last block computes only a fraction of the tokens,
    `last_block_share`, and attends to the others; see
    `FixedHeadBackbone.encode_positions`.
    """
    shape = EncoderShape.of(model)
    d = shape.hidden_dim
    shares = [1] * (shape.num_layers - 1) + [last_block_share]
    return sum(
        4 * d * width  # keys and values
        + share
        * (
            4 * d * width
            + 4 * sequence_length * width
            + 4 * d * shape.intermediate_dim
        )
        for width, share in zip(shape.attention_widths, shares)
    )


def masked_lm_flops(model) -> int:
    """Floating-point operations of predicting one masked token.

    The dense layer of the head, 2 D^2, and the logits, 2 D V.
    """
    shape = EncoderShape.of(model)
    return 2 * shape.hidden_dim * (shape.hidden_dim + shape.vocabulary_size)


def forward_flops(model, sequence_length: int) -> int:
    """Floating-point operations of encoding one sequence, all its tokens.

    Without pooler and pre-training heads.
    """
    return sequence_length * encoder_flops(model, sequence_length)


def training_flops(model, sequence_length: int) -> int:
    """Floating-point operations of an update, for each of its sequences.

    Three times `forward_flops`: the gradients of the inputs and of the weights
    cost as much again each.
    """
    return 3 * forward_flops(model, sequence_length)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a shape costs at a sequence length.

    Attributes:
        sequence_length: T, in tokens.
        forward_flops: of encoding one sequence of T tokens.
        training_flops: of a forward and backward pass.
        batch_size: the sequences of a training step on one device.
        activation_bytes: the peak of the activations of such a step of
            pre-training, in float32, as XLA for CPUs compiles it; see
            `keras_fixedhead.planner.memory`. 15% of the tokens of each
            sequence, rounded up, are predicted.
        state_bytes: weights, gradients and AdamW's moments, in float32, both
            pre-training heads included.
        weight_bytes: by dtype, the encoder's weights, without pre-training
            heads, vocabulary and optimizer. With `"int8"` the kernels and the
            token and segment embeddings are int8, each with float32 scales,
            the rest is float32: what Keras's `quantize("int8")` leaves.
        document_bytes: by dtype, one embedding of an index, D numbers,
            without what the index adds.
        heads: how many all layers have together.
        heads_under_length: how many are smaller than T and so cannot
            represent every attention pattern (Theorem 1 of
            https://arxiv.org/abs/2002.07028).
        depth_threshold, fitted_depth_threshold: layers; see
            `keras_fixedhead.theory.depth`.
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
    def of(cls, model, sequence_length: int, batch_size: int = 32) -> "Cost":
        """The costs of an `EncoderShape` or a `FixedHeadBackbone`."""
        shape = EncoderShape.of(model)
        check_length(sequence_length, shape.max_sequence_length)
        parameters = ParameterCount.of(shape)
        sizes = [size for layer in shape.head_sizes for size in layer]
        d = shape.hidden_dim
        predictions = math.ceil(_PREDICTED * sequence_length)
        return cls(
            shape=shape,
            sequence_length=sequence_length,
            parameters=parameters,
            forward_flops=forward_flops(shape, sequence_length),
            training_flops=training_flops(shape, sequence_length),
            batch_size=batch_size,
            activation_bytes=activation_bytes(
                shape, batch_size, sequence_length, predictions
            ),
            state_bytes=state_bytes(parameters.total),
            weight_bytes={
                "float32": 4 * parameters.encoder,
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
        """Whether D is under T: then no head size reaches every pattern.

        The logits of a head are products of embeddings, and their rank is at
        most D.
        """
        return self.shape.hidden_dim < self.sequence_length

    @property
    def bottlenecked(self) -> bool:
        """Whether a head or the embedding is under the sequence length."""
        return self.heads_under_length > 0 or self.embedding_under_length

    def as_dict(self) -> dict:
        """The record as JSON values.

        `parameters` is an int, with both pre-training heads, as the paper
        counts.
        """
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
    d, width = shape.hidden_dim, sum(shape.attention_widths)
    rows = shape.vocabulary_size + shape.num_segments
    kernels = 4 * d * width
    kernels += 2 * d * shape.intermediate_dim * shape.num_layers
    outputs = 3 * width + (d + shape.intermediate_dim + d) * shape.num_layers
    if shape.pooler:
        kernels += d * d
        outputs += d
    small = rows * d + kernels
    scales = rows + outputs
    return small + 4 * (scales + parameters.encoder - small)
