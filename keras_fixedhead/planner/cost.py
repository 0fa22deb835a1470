"""What a shape costs, in one record.

Shape letters: D embedding size, T sequence length.
"""

import dataclasses
import math

from keras_fixedhead.planner.flops import forward_flops, training_flops
from keras_fixedhead.planner.memory import activation_bytes, state_bytes
from keras_fixedhead.planner.parameters import ParameterCount
from keras_fixedhead.planner.shape import EncoderShape, is_size
from keras_fixedhead.theory.depth import (
    depth_threshold,
    fitted_depth_threshold,
)

# BERT's part of the tokens that are masked and predicted.
_PREDICTED = 0.15

_BYTES = {"float32": 4, "bfloat16": 2}
_DOCUMENT_BYTES = {"float32": 4, "float16": 2, "int8": 1}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a shape costs at a sequence length.

    Attributes:
        shape: an `EncoderShape`.
        sequence_length: int. T, in tokens.
        parameters: a `ParameterCount`.
        forward_flops: int. Floating-point operations of encoding one
            sequence of T tokens.
        training_flops: int. Those of a forward and backward pass.
        weight_bytes: dict of int, by dtype. The encoder's weights, without
            pre-training heads, vocabulary and optimizer. As `"int8"` the
            kernels and the token and segment embeddings are int8, each with
            float32 scales, the rest is float32: what Keras's
            `quantize("int8")` leaves.
        batch_size: int. The sequences of a training step on one device.
        activation_bytes: int. The peak of the activations of such a step of
            pre-training, in float32, as XLA for CPUs compiles it; see
            `keras_fixedhead.planner.memory`. Of each sequence 15% of the
            tokens, rounded up, are predicted.
        state_bytes: int. Weights, gradients and AdamW's moments, in float32,
            both pre-training heads included.
        document_bytes: dict of int, by dtype. One embedding of an index, D
            numbers, without what the index adds.
        heads: int. The heads of all layers.
        heads_under_length: int. Those whose size is under T: they cannot
            represent every attention pattern (Theorem 1 of
            https://arxiv.org/abs/2002.07028).
        smallest_head_size: int.
        depth_threshold: float. See `keras_fixedhead.theory.depth`.
        fitted_depth_threshold: float.
    """

    shape: EncoderShape
    sequence_length: int
    parameters: ParameterCount
    forward_flops: int
    training_flops: int
    batch_size: int
    activation_bytes: int
    state_bytes: int
    weight_bytes: dict
    document_bytes: dict
    heads: int
    heads_under_length: int
    smallest_head_size: int
    depth_threshold: float
    fitted_depth_threshold: float

    @classmethod
    def of(cls, model, sequence_length, batch_size=32):
        """The costs of a model or of what it would be.

        Args:
            model: an `EncoderShape` or a `FixedHeadBackbone`.
            sequence_length: int. T, in tokens.
            batch_size: int. The sequences of a training step on one device.

        Returns:
            A `Cost`.

        Raises:
            ValueError: if `model` is neither, a number is no positive
                integer, or there are more tokens than positions.
        """
        shape = EncoderShape.of(model)
        longest = shape.max_sequence_length
        if not is_size(sequence_length) or sequence_length > longest:
            raise ValueError(
                "`sequence_length` must be a positive integer, at most the "
                f"{longest} positions of the shape. "
                f"Received: sequence_length={sequence_length!r}"
            )
        parameters = ParameterCount.of(shape)
        sizes = [size for layer in shape.head_sizes for size in layer]
        return cls(
            shape=shape,
            sequence_length=sequence_length,
            parameters=parameters,
            forward_flops=forward_flops(shape, sequence_length),
            training_flops=training_flops(shape, sequence_length),
            batch_size=batch_size,
            activation_bytes=activation_bytes(
                shape,
                batch_size,
                sequence_length,
                math.ceil(_PREDICTED * sequence_length),
            ),
            state_bytes=state_bytes(parameters.total),
            weight_bytes={
                **{
                    dtype: size * parameters.encoder
                    for dtype, size in _BYTES.items()
                },
                "int8": _int8_bytes(shape, parameters),
            },
            document_bytes={
                dtype: size * shape.hidden_dim
                for dtype, size in _DOCUMENT_BYTES.items()
            },
            heads=len(sizes),
            heads_under_length=sum(size < sequence_length for size in sizes),
            smallest_head_size=min(sizes),
            depth_threshold=depth_threshold(shape.hidden_dim),
            fitted_depth_threshold=fitted_depth_threshold(shape.hidden_dim),
        )

    @property
    def embedding_under_length(self):
        """Whether D is under T: then no head size reaches every pattern.

        The logits of a head are products of embeddings, and their rank is at
        most D.
        """
        return self.shape.hidden_dim < self.sequence_length

    @property
    def bottlenecked(self):
        """Whether a head or the embedding is under the sequence length."""
        return self.heads_under_length > 0 or self.embedding_under_length

    def as_dict(self):
        """The record as JSON values.

        Returns:
            A dictionary; `parameters` is the int with both pre-training
            heads, which the paper counts.
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
