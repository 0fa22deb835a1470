"""The encoder that a run trains."""

from keras_fixedhead import FixedHeadBackbone
from training.configs import ModelConfig


def make_encoder(
    model: ModelConfig, vocabulary_size: int, **arguments
) -> FixedHeadBackbone:
    """Makes an encoder with random weights.

    Args:
        model: Its shape.
        vocabulary_size: The number of token ids.
        **arguments: Further arguments of `FixedHeadBackbone`.
    """
    return FixedHeadBackbone(
        vocabulary_size=vocabulary_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        hidden_dim=model.hidden_dim,
        intermediate_dim=model.intermediate_dim,
        head_size=model.head_size,
        dropout=model.dropout,
        max_sequence_length=model.max_sequence_length,
        dtype=model.dtype,
        **arguments,
    )
