"""How far an export's answers may be from the Keras model's."""

import numpy as np

# Greatest difference from the Keras model, per value, relative to the largest
# value where that is above 1. Half precision and int8 round at every layer.
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2, "int8": 3e-2}
# What models answer at padding, where there is no token.
PADDING = -1e9


def scale(outputs):
    """The largest size of the numbers of `{output: array}`, at least 1."""
    largest = 1.0
    for array in outputs.values():
        if array.dtype.kind == "f":
            sizes = np.abs(array[array != PADDING])
            largest = max(largest, sizes.max(initial=0.0))
    return float(largest)
