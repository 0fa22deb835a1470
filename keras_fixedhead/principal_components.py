"""Principal components.

Shape letters: N vectors, D their size.
"""

import numpy as np

_ROWS_AT_ONCE = 4096


def principal_components(vectors: np.ndarray, size: int) -> np.ndarray:
    """The directions in which vectors `[N, D]` extend most, not centred.

    Returns orthonormal columns, float64 `[D, size]`, each with a positive
    largest entry; columns beyond D are zero.
    """
    products = np.zeros([vectors.shape[1]] * 2)
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        part = vectors[start : start + _ROWS_AT_ONCE].astype("float64")
        products += part.T @ part
    _, directions = np.linalg.eigh(products)
    # Eigenvalues ascend.
    directions = directions[:, ::-1][:, :size]
    # Rounding, which depends on the machine, must not choose the sign.
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, range(len(largest))])
    missing = size - directions.shape[1]
    return np.pad(directions, ((0, 0), (0, missing)))
