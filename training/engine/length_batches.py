"""Sequences through a model in batches of like lengths.

Shape letters: N sequences, M of a batch, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from keras_fixedhead.progress import progress


def outputs_by_length(
    lengths: Sequence[int],
    compute: Callable,
    batch_size: int,
    label: str,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Computes batches, the longest sequences first.

    What is too large for the memory so fails at once, and not at the end.

    Args:
        lengths: N numbers, the larger the longer a sequence is.
        compute: Function of the numbers of sequences, int array `[M]`, to
            `{name: tensor [M, ...]}`.
        batch_size: The most sequences of a batch.
        label: What a progress bar on the terminal says.

    Yields:
        The numbers of the sequences of a batch, and its outputs as arrays.

    Raises:
        ValueError: `batch_size` is not positive.
    """
    if batch_size < 1:
        raise ValueError(
            f"`batch_size` must be positive. Received: {batch_size}"
        )
    order = np.argsort(-np.asarray(lengths), kind="stable")
    with progress(label, len(order)) as advance:
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            outputs = compute(rows)
            yield rows, {name: np.array(x) for name, x in outputs.items()}
            advance(len(rows))
