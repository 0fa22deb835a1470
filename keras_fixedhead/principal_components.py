"""The directions in which vectors extend the most.

Shape letters: N vectors, D their size.
"""

import numpy as np

_ROWS_AT_ONCE = 4096


def principal_components(vectors: np.ndarray, size: int) -> np.ndarray:
    """The directions along which vectors are longest, not centred.

    Args:
        vectors: Float array `[N, D]`.
        size: How many; beyond D they are zero.

    Returns:
        Float64 array `[D, size]`, orthonormal columns; of each the largest
        number is positive.
    """
    products = np.zeros([vectors.shape[1]] * 2)
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        part = vectors[start : start + _ROWS_AT_ONCE].astype("float64")
        products += part.T @ part
    _, directions = np.linalg.eigh(products)
    # The last are the longest.
    directions = directions[:, ::-1][:, :size]
    # Of either sign they are eigenvectors; rounding, which is another one on
    # another machine, must not choose it.
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, range(len(largest))])
    missing = size - directions.shape[1]
    return np.pad(directions, ((0, 0), (0, missing)))
