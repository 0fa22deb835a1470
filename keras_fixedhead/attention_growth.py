"""The weights of an attention layer, as part of those of a larger one.

Shape letters: D embedding size, H head size, W total width of all heads.
"""

import itertools

import numpy as np
from keras import ops


def grow_attention(before, after, rng):
    """Sets the weights of an attention layer to those of a smaller one.

    Both compute the same then. `logits = scale q k`, so a head's queries are
    multiplied by `old scale / new scale`: where the scale is `1 / sqrt(H)`,
    by `sqrt(new H / old H)`, and by 1 where it is an `attention_scale`. What
    is new: in heads that were there, query columns of zeros and random key
    and value columns; in new heads, all three random; everywhere, rows of
    `attention_output` of zeros.

    Args:
        before: a built `FixedMultiHeadAttention`.
        after: one with as large or larger heads, or more, built for the same
            inputs, with biases if `before` has them.
        rng: a `numpy.random.Generator`.
    """
    sizes, new_sizes = before.head_sizes, after.head_sizes
    starts = list(itertools.accumulate(new_sizes, initial=0))
    # Which of the new columns are the old ones, [W].
    places = np.concatenate(
        [start + np.arange(size) for start, size in zip(starts, sizes)]
    )
    # New columns before this one belong to heads that were there, [W_new].
    of_old_heads = np.arange(starts[-1]) < starts[len(sizes)]
    scale = np.concatenate(
        [
            np.full(size, old / new)
            for size, old, new in zip(
                sizes, before.attention_scales, after.attention_scales
            )
        ]
    )
    for name in ("query", "key", "value"):
        old, new = getattr(before, name), getattr(after, name)
        scaled = scale if name == "query" else 1.0
        kernel = _truncated_normal(rng, new.kernel.shape)
        if name == "query":
            kernel[:, of_old_heads] = 0.0
        kernel[:, places] = to_numpy(old.kernel, "float64") * scaled
        new.kernel.assign(kernel)
        if old.use_bias:
            bias = np.zeros(new.bias.shape)
            bias[places] = to_numpy(old.bias, "float64") * scaled
            new.bias.assign(bias)
    old, new = before.attention_output, after.attention_output
    kernel = np.zeros(new.kernel.shape)
    kernel[places] = to_numpy(old.kernel, "float64")
    new.kernel.assign(kernel)
    if old.use_bias:
        new.bias.assign(to_numpy(old.bias))


def to_numpy(weight, dtype=None):
    """A copy: JAX may give a training step the memory of its arguments."""
    return np.array(ops.convert_to_numpy(weight), dtype)


def _truncated_normal(rng, shape):
    """Normal numbers of standard deviation 0.02, none above two of them."""
    x = rng.standard_normal(shape)
    while (outside := abs(x) > 2.0).any():
        x[outside] = rng.standard_normal(outside.sum())
    return 0.02 * x
