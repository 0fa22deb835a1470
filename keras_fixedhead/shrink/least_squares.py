"""Regressions, and what they explain, from rows that come batch by batch.

Shape letters: P rows, tokens of a batch, C columns of inputs, D of targets.
"""

import numpy as np

from keras_fixedhead.growth import to_numpy
from keras_fixedhead.layer_config import Tensor

# Of a normalized channel; below, it is constant but for rounding.
_LEAST_VARIANCE = 1e-6


class LeastSquares:
    """Fits `y = x kernel + bias`, and is pulled towards given ones."""

    def __init__(
        self, kernel: np.ndarray, bias: np.ndarray | float, ridge: float
    ):
        self._kernel, self._bias, self._ridge = kernel, bias, ridge
        self._products = self._targets = 0.0

    def add(self, x: Tensor, y: Tensor) -> None:
        x, y = to_numpy(x, "float32"), to_numpy(y, "float32")
        y = (y - x @ self._kernel - self._bias).astype("float32")
        x = np.concatenate((x, np.ones_like(x[:, :1])), axis=1)
        # Products in float32 are twice as fast; their sums are in float64.
        self._products = self._products + (x.T @ x).astype("float64")
        self._targets = self._targets + (x.T @ y).astype("float64")

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        diagonal = np.diag(self._products).copy()
        # The bias, last, is free.
        penalty = np.full_like(diagonal, self._ridge * diagonal[:-1].mean())
        penalty[-1] = 0.0
        change = np.linalg.solve(
            self._products + np.diag(penalty), self._targets
        )
        return self._kernel + change[:-1], self._bias + change[-1]


class LineFits:
    """Fits `y = slope x + offset` to each column."""

    def __init__(self):
        self._rows = 0
        self._sums = 0.0

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        self._rows += len(x)
        self._sums = self._sums + np.stack(
            [z.sum(0) for z in (x, y, x * x, x * y)]
        )

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        x, y, xx, xy = self._sums / self._rows
        variances = xx - x * x
        slopes = np.divide(
            xy - x * y,
            variances,
            out=np.zeros_like(x),
            where=variances > _LEAST_VARIANCE,
        )
        return slopes, y - slopes * x


class Explained:
    """The share of the variance of columns that a guess explains."""

    def __init__(self):
        self._rows = 0
        self._errors = self._sums = self._squares = 0.0

    def add(self, wanted: np.ndarray, found: np.ndarray) -> None:
        wanted = wanted.astype("float64")
        self._rows += len(wanted)
        self._errors += np.square(wanted - found).sum()
        self._sums = self._sums + wanted.sum(0)
        self._squares += np.square(wanted).sum()

    @property
    def r2(self) -> float:
        mean = np.square(self._sums).sum() / self._rows
        return float(1.0 - self._errors / (self._squares - mean))


def centred_logits(
    wanted: Tensor, found: Tensor, padding_mask: Tensor
) -> list[np.ndarray]:
    """Logits up to what the softmax ignores, as one column each.

    From scores `[B, N, T, S]` of two models and the mask of the tokens.
    """
    wanted, found = to_numpy(wanted, "float64"), to_numpy(found, "float64")
    real = to_numpy(padding_mask)[:, None, :, None] != 0
    there = (wanted > 0) & (found > 0) & real
    columns = []
    for scores in (wanted, found):
        logs = np.log(np.where(there, scores, 1.0))
        mean = logs.sum(-1, keepdims=True) / np.maximum(
            there.sum(-1, keepdims=True), 1
        )
        columns.append((logs - mean)[there][:, None])
    return columns
