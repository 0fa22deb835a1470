"""Where rows of ids end, though an id of `[PAD]` may be a real token.

Shape letters: T sequence length.
"""

import sys

import numpy as np
from keras import ops


def until_last(mask):
    """True up to the last True of each row, `[..., T]`.

    Where special tokens in texts become ids, `[PAD]` may be one of them. Every
    row ends in `[SEP]`, before the padding.

    Args:
        mask: bool `[..., T]`, whether an id is another than that of `[PAD]`:
            an array, or a tensor of the backend or of `tf.data`.

    Returns:
        The same kind and shape.
    """
    if isinstance(mask, np.ndarray):
        backwards = np.maximum.accumulate(mask[..., ::-1], axis=-1)
        # PyTorch takes no negative strides.
        return np.ascontiguousarray(backwards[..., ::-1])
    tf = sys.modules.get("tensorflow")
    if tf is not None and tf.is_tensor(mask):
        return tf.math.cumsum(tf.cast(mask, "int32"), axis=-1, reverse=True) > 0
    backwards = ops.flip(ops.cast(mask, "int32"), axis=-1)
    return ops.flip(ops.cumsum(backwards, axis=-1), axis=-1) > 0
