"""The shape of an encoder: what decides its costs, and nothing else."""

import dataclasses
import numbers


@dataclasses.dataclass(frozen=True)
class EncoderShape:
    """The sizes of a `FixedHeadBackbone`, under the names of its arguments.

    Attributes:
        vocabulary_size: int.
        num_layers: int.
        num_heads: int, of each layer.
        hidden_dim: int. The embedding size.
        intermediate_dim: int.
        head_size: int, or a sequence with, for each layer, an int or one int
            per head, or `None` for `max_sequence_length`.
        max_sequence_length: int. The position embeddings.
        num_segments: int.
        dropout: float.
        pooler: bool.

    Raises:
        ValueError: if a size is not a positive integer, or the head sizes are
            not as many as layers or heads.
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

    def __post_init__(self):
        for name in (
            "vocabulary_size",
            "num_layers",
            "num_heads",
            "hidden_dim",
            "intermediate_dim",
            "max_sequence_length",
            "num_segments",
        ):
            if not is_size(getattr(self, name)):
                raise ValueError(
                    f"`{name}` must be a positive integer. "
                    f"Received: {name}={getattr(self, name)!r}"
                )
        sizes = self.head_sizes
        if len(sizes) != self.num_layers or not all(
            len(layer) == self.num_heads and all(map(is_size, layer))
            for layer in sizes
        ):
            raise ValueError(
                "`head_size` must be a positive integer, or one for each of "
                f"the {self.num_layers} layers, each an integer or one for "
                f"each of the {self.num_heads} heads. "
                f"Received: head_size={self.head_size!r}"
            )

    @classmethod
    def of(cls, model):
        """The shape of a `FixedHeadBackbone`, or the shape itself.

        Args:
            model: a `FixedHeadBackbone` or an `EncoderShape`.

        Returns:
            An `EncoderShape`.

        Raises:
            ValueError: if it is neither.
        """
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
    def head_sizes(self):
        """The size of each head, a tuple of ints for each layer."""
        sizes = self.head_size
        if sizes is None:
            sizes = self.max_sequence_length
        if not isinstance(sizes, (list, tuple)):
            sizes = (sizes,) * self.num_layers
        return tuple(
            tuple(layer)
            if isinstance(layer, (list, tuple))
            else (layer,) * self.num_heads
            for layer in sizes
        )

    @property
    def attention_widths(self):
        """The sum of the head sizes, an int for each layer."""
        return tuple(map(sum, self.head_sizes))


def is_size(value):
    """Whether a value is a positive integer."""
    return (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and value > 0
    )
