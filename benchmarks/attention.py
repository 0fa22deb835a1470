"""How fast is the layer beside `keras.layers.MultiHeadAttention`?

    python -m benchmarks.attention

Both layers have the same weights and take turns in one process, forward and as
a training step, with padding masks as real batches have them. Prints the median
of the milliseconds and of the ratios, pair by pair.
"""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

from benchmarks import common
from keras_fixedhead.convert import from_multi_head_attention


@dataclasses.dataclass(frozen=True)
class Config:
    batch_size: int = 16
    sequence_length: int = 128
    hidden_dim: int = 512
    num_heads: int = 16
    head_size: int = 128
    repeats: int = 25


@tf.function
def forward(
    layer: keras.layers.Layer, x: tf.Tensor, mask: tf.Tensor
) -> tf.Tensor:
    return layer(x, x, value_mask=mask)


@tf.function
def train(
    layer: keras.layers.Layer, x: tf.Tensor, mask: tf.Tensor
) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        output = layer(x, x, value_mask=mask, training=True)
        loss = tf.reduce_sum(output * output)
    return tape.gradient(loss, [v.value for v in layer.trainable_variables])


def main() -> None:
    config = common.parse(Config)
    shape = (config.batch_size, config.sequence_length, config.hidden_dim)
    x = tf.random.stateless_normal(shape, seed=(0, 1))
    lengths = np.random.default_rng(0).integers(8, shape[1], shape[0])
    mask = tf.sequence_mask(lengths, shape[1])
    print(common.environment("tensorflow", "keras"), config, sep="\n")
    rows = []
    for name, step in (("inference", forward), ("training step", train)):
        for dropout in (0, 0.1):
            theirs = keras.layers.MultiHeadAttention(
                config.num_heads, config.head_size, dropout=dropout
            )
            theirs.build(shape, shape)
            ours = from_multi_head_attention(theirs)
            calls = {
                "Keras": functools.partial(step, theirs, x, mask),
                "ours": functools.partial(step, ours, x, mask),
            }
            compared = common.compare(calls, config.repeats)
            rows += [[f"{name}, {dropout=}", *row] for row in compared]
    common.print_table(["what", "layer", "ms", "ratio to Keras"], rows)


if __name__ == "__main__":
    main()
