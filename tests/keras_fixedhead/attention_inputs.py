"""Sizes, inputs and masks for the tests of attention layers."""

import numpy as np

# Batch, queries, values, sizes of both, heads and their size: primes, all
# different, so that a swapped axis cannot pass.
SIZES = 2, 5, 7, 11, 13, 3, 17


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def mask(*shape, seed=1):
    """A random mask whose rows each allow their first position."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask
