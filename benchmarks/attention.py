"""How fast is the layer beside `keras.layers.MultiHeadAttention`?

    python -m benchmarks.attention

Both layers have the same weights and take turns in one process, forward and as
a training step, with padding masks as real batches have them. Prints the median
of the milliseconds and of the ratios, pair by pair.
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks import common
from keras_fixedhead.convert import from_multi_head_attention


@dataclasses.dataclass(frozen=True)
class Config:
    """The shape of both layers and of their input."""

    batch_size: int = 16
    sequence_length: int = 128
    hidden_dim: int = 512
    num_heads: int = 16
    head_size: int = 128
    repeats: int = 25


def compiled(
    layer: keras.layers.Layer, x: tf.Tensor, mask: tf.Tensor, training: bool
) -> Callable[[], tf.Tensor]:
    """The layer's output, or its gradients in training, as a function."""
    if not training:
        return tf.function(lambda: layer(x, x, value_mask=mask))

    def step():
        with tf.GradientTape() as tape:
            output = layer(x, x, value_mask=mask, training=True)
            loss = tf.reduce_sum(output * output)
        return tape.gradient(loss, [v.value for v in layer.trainable_variables])

    return tf.function(step)


def main() -> None:
    config = common.parse(Config, "attention", __doc__)
    shape = (config.batch_size, config.sequence_length, config.hidden_dim)
    x = tf.random.stateless_normal(shape, seed=(0, 1))
    lengths = np.random.default_rng(0).integers(8, shape[1], shape[0])
    mask = tf.sequence_mask(lengths, shape[1])
    common.print_environment("TensorFlow", "Keras")
    print(config)
    common.print_header("what", "ours, ms", "Keras, ms", "ours / Keras")
    for name, training in (("inference", False), ("training step", True)):
        for dropout in (0, 0.1):
            theirs = keras.layers.MultiHeadAttention(
                config.num_heads, config.head_size, dropout=dropout
            )
            theirs.build(shape, shape)
            layers = {
                "ours": from_multi_head_attention(theirs),
                "Keras": theirs,
            }
            a, b = common.milliseconds(
                {
                    name: compiled(layer, x, mask, training)
                    for name, layer in layers.items()
                },
                config.repeats,
            ).values()
            common.print_row(
                f"{name}, {dropout=}",
                f"{np.median(a):.1f}",
                f"{np.median(b):.1f}",
                f"{np.median(a / b):.2f}",
            )


if __name__ == "__main__":
    main()
