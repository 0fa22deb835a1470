"""How fast is the layer beside `keras.layers.MultiHeadAttention`?

    python benchmarks/attention.py

Both layers have the same weights and run in turn, in one process, forward and
as a training step, with padding masks as real batches have them. Prints the
median of the milliseconds and of the ratios, pair by pair.
"""

import argparse
import platform
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

from keras_fixedhead.convert import from_multi_head_attention


def compiled(layer, x, mask, training):
    if not training:
        return tf.function(lambda: layer(x, x, value_mask=mask))

    def step():
        with tf.GradientTape() as tape:
            output = layer(x, x, value_mask=mask, training=True)
            loss = tf.reduce_sum(output * output)
        return tape.gradient(loss, [v.value for v in layer.trainable_variables])

    return tf.function(step)


def medians(functions, repeats):
    """Milliseconds of each function, run in turn, `[repeats]` each."""
    for function in functions:
        function()
    times = [[] for _ in functions]
    for _ in range(repeats):
        for function, list_ in zip(functions, times):
            start = time.perf_counter()
            function()
            list_.append((time.perf_counter() - start) * 1e3)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--sequence_length", type=int, default=128)
    parser.add_argument("--hidden_dim", type=int, default=512)
    parser.add_argument("--num_heads", type=int, default=16)
    parser.add_argument("--head_size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=25)
    args = parser.parse_args()

    shape = (args.batch_size, args.sequence_length, args.hidden_dim)
    x = tf.random.stateless_normal(shape, seed=(0, 1))
    lengths = np.random.default_rng(0).integers(
        8, args.sequence_length, shape[0]
    )
    mask = tf.sequence_mask(lengths, args.sequence_length)
    print(
        f"{platform.processor() or platform.machine()}, "
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, "
        f"{args.num_heads} heads of {args.head_size}, input {shape}"
    )
    print("| what | ours, ms | Keras, ms | ours / Keras |")
    print("|---|---|---|---|")
    for name, dropout, training in (
        ("inference, dropout=0", 0.0, False),
        ("inference, dropout=0.1", 0.1, False),
        ("training step, dropout=0", 0.0, True),
        ("training step, dropout=0.1", 0.1, True),
    ):
        theirs = keras.layers.MultiHeadAttention(
            args.num_heads, args.head_size, dropout=dropout
        )
        theirs.build(shape, shape)
        ours = from_multi_head_attention(theirs)
        a, b = medians(
            [compiled(layer, x, mask, training) for layer in (ours, theirs)],
            args.repeats,
        )
        ratio = statistics.median(p / q for p, q in zip(a, b))
        print(
            f"| {name} | {statistics.median(a):.1f} | "
            f"{statistics.median(b):.1f} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
