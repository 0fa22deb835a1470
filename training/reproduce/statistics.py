"""What differences between runs of few seeds say.

All runs of one seed begin the text at the same place and see it in the same
order, so that a part of what a seed does is the same in each cell and drops
out of differences. What is left is taken to be as large in each cell, and is
estimated over all of them: three seeds alone would say little.

Shape letters: C cells, S seeds.
"""

import dataclasses
import math

import numpy as np
from scipy import stats

# How probable it is to see an effect of the size that is called detectable.
POWER = 0.8


@dataclasses.dataclass(frozen=True)
class Noise:
    """The deviation that seeds make, and how well it is known.

    Attributes:
        deviation: float, of one run, without what its seed does to all cells.
        freedom: int, degrees of freedom of that estimate.
    """

    deviation: float
    freedom: int

    def half_width(self, seeds: int, confidence: float) -> float:
        """Of the confidence interval of a difference of means of `seeds`."""
        return math.sqrt(2) * self.mean_half_width(seeds, confidence)

    def mean_half_width(self, seeds: int, confidence: float) -> float:
        """Of the confidence interval of a mean of `seeds`."""
        quantile = stats.t.ppf(0.5 + confidence / 2, self.freedom)
        return float(quantile * self.deviation / math.sqrt(seeds))

    def smallest_effect(self, seeds: int, confidence: float) -> float:
        """The smallest difference that a test finds with `POWER`."""
        quantiles = stats.t.ppf(0.5 + confidence / 2, self.freedom)
        quantiles += stats.t.ppf(POWER, self.freedom)
        return float(quantiles * self.deviation * math.sqrt(2 / seeds))


def noise(values: list[list[float]]) -> Noise | None:
    """The noise of runs: what neither their cell nor their seed explains.

    Args:
        values: Of C cells, each with the same S seeds.

    Returns:
        None where there are not two of each.
    """
    table = np.asarray(values, "float64")
    if table.ndim != 2 or min(table.shape) < 2:
        return None
    rest = table - table.mean(1, keepdims=True)
    rest = rest - rest.mean(0)
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return Noise(float(math.sqrt((rest**2).sum() / freedom)), freedom)


def mean_interval(values: list[float], confidence: float) -> float:
    """Half of the width of a mean's confidence interval; inf for one value."""
    if len(values) < 2:
        return math.inf
    quantile = stats.t.ppf(0.5 + confidence / 2, len(values) - 1)
    return float(quantile * stats.sem(values))
