"""The shape of an encoder, which decides its costs, and its parameters.

Shape letters: D embedding size, W the width of all heads of a layer (their
head sizes added), F feed-forward width, V vocabulary size.
"""

import dataclasses
import itertools
import typing

from keras_fixedhead.attention_checks import positive_int

if typing.TYPE_CHECKING:
    from keras_fixedhead.backbone import FixedHeadBackbone

# What has a shape.
Shaped: typing.TypeAlias = "EncoderShape | FixedHeadBackbone"


@dataclasses.dataclass(frozen=True)
class EncoderShape:
    """The sizes of a `FixedHeadBackbone`, named like its arguments.

    `head_size` is an int, or a sequence with an int or one int per head for
    each layer, or `None` for `max_sequence_length`.
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
        """The shape of a `FixedHeadBackbone`, or a shape itself."""
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
        """The size of each head of each layer."""

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
        """Whether each head size is the embedding size / heads."""
        sizes = itertools.chain(*self.head_sizes)
        return all(size * self.num_heads == self.hidden_dim for size in sizes)

    @property
    def attention_widths(self) -> tuple[int, ...]:
        """W of each layer."""
        return tuple(map(sum, self.head_sizes))


def check_length(sequence_length: int, max_sequence_length: int) -> None:
    """Raises `ValueError` unless there are positions for a sequence."""
    if positive_int("sequence_length", sequence_length) > max_sequence_length:
        raise ValueError(
            "`sequence_length` must be at most the "
            f"{max_sequence_length} positions of the encoder. "
            f"Received: sequence_length={sequence_length!r}"
        )


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """The parameters of an encoder and of its two pre-training heads.

    Exactly those of `FixedHeadBackbone(...)`, and of the
    `FixedHeadMaskedLM(...)` around it: every dense layer has a bias, and the
    logits use the token embedding.
    """

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
        """Counts those of an `EncoderShape` or a `FixedHeadBackbone`."""
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
