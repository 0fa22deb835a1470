"""The paper's claims, and what the differences between runs say of them.

`claims.yaml` was written before the runs: each claim with its source, the
comparisons that decide it, and the smallest effect that they can show.

All runs of one seed see the same text in the same order, so that part of a
seed's effect is common to all cells and drops out of differences. The noise
that remains is taken to be the same in each cell and is estimated over all of
them, since three seeds alone would say little.

Shape letters: C cells, S seeds.
"""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np
import yaml
from scipy import stats

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
NOT_TESTABLE = "not testable at this size"
UNDECIDED = "not decided yet"

# The probability of seeing an effect that is called detectable.
POWER = 0.8


@dataclasses.dataclass(frozen=True)
class Noise:
    """The deviation of runs without their seeds' effects, and its freedom."""

    deviation: float
    freedom: int

    def half_width(self, seeds: int, confidence: float) -> float:
        """Half the confidence interval of a difference of means of `seeds`."""
        return math.sqrt(2) * self.mean_half_width(seeds, confidence)

    def mean_half_width(self, seeds: int, confidence: float) -> float:
        """Half the confidence interval of a mean of `seeds`."""
        quantile = stats.t.ppf(0.5 + confidence / 2, self.freedom)
        return float(quantile * self.deviation / math.sqrt(seeds))

    def smallest_effect(self, seeds: int, confidence: float) -> float:
        """The smallest difference that a test finds with `POWER`."""
        quantiles = stats.t.ppf(0.5 + confidence / 2, self.freedom)
        quantiles += stats.t.ppf(POWER, self.freedom)
        return float(quantiles * self.deviation * math.sqrt(2 / seeds))


def estimate_noise(values: list[list[float]]) -> Noise | None:
    """Estimates what neither cell nor seed explains in `[C, S]`, if it can."""
    table = np.asarray(values, "float64")
    if table.ndim != 2 or min(table.shape) < 2:
        return None
    rest = table - table.mean(1, keepdims=True)
    rest = rest - rest.mean(0)
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    return Noise(float(math.sqrt((rest**2).sum() / freedom)), freedom)


def mean_interval(values: list[float], confidence: float) -> float:
    """Half of the confidence interval of the mean of two values or more."""
    quantile = stats.t.ppf(0.5 + confidence / 2, len(values) - 1)
    return float(quantile * stats.sem(values))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """That the nats of one cell, or a `cell:metric`, are lower than another's.

    `lower` may be above `than` by up to `margin`. `smallest_effect` is what was
    expected, before the runs, to be found with probability `POWER`.
    """

    lower: str
    than: str
    margin: float = 0.0
    smallest_effect: float | None = None


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, which holds if all tests do; scales that cannot test it, why."""

    name: str
    source: str
    says: str
    tests: Sequence[Comparison] = ()
    not_testable: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Claims:
    """All claims, the confidence of their tests, and the noise expected."""

    confidence: float
    noise: float
    claims: list[Claim]


def read_claims() -> Claims:
    path = pathlib.Path(__file__).with_name("claims.yaml")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for claim in content["claims"]:
        claim["tests"] = [Comparison(**test) for test in claim.get("tests", ())]
    claims = [Claim(**claim) for claim in content.pop("claims")]
    return Claims(**content, claims=claims)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    `difference` is the mean over common seeds of `lower` less `than`, and
    `half_width` half of its confidence interval; NaN while unknown.
    """

    test: Comparison
    difference: float
    half_width: float
    seeds: int

    @property
    def answer(self) -> str:
        """Whether the whole interval is as claimed; empty while unknown."""
        if math.isnan(self.half_width):
            return ""
        if self.difference + self.half_width < self.test.margin:
            return "yes"
        if self.difference - self.half_width > self.test.margin:
            return "no: the opposite"
        return "no"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A claim's outcomes, one of the four verdicts above, and why."""

    claim: Claim
    outcomes: tuple[Outcome, ...]
    verdict: str
    because: str


def decide(
    claim: Claim,
    scale: str,
    metrics: dict[str, dict[int, dict]],
    noise: Noise | None,
    confidence: float,
) -> Verdict:
    """Decides a claim from the metrics of finished runs, by cell and seed."""
    outcomes = tuple(
        _outcome(test, metrics, noise, confidence) for test in claim.tests
    )
    if scale in claim.not_testable:
        return Verdict(claim, outcomes, NOT_TESTABLE, claim.not_testable[scale])
    # One that contradicts the claim decides, even while others are unknown.
    opposite = sum(o.answer == "no: the opposite" for o in outcomes)
    unknown = [o.test for o in outcomes if not o.answer]
    unseen = sum(o.answer != "yes" for o in outcomes)
    of = f"of {len(outcomes)} comparisons"
    verdict, because = REPRODUCED, ""
    if opposite:
        verdict = NOT_REPRODUCED
        because = f"it is the other way round in {opposite} {of}"
    elif unknown:
        names = [n for test in unknown for n in (test.lower, test.than)]
        cells = dict.fromkeys(name.partition(":")[0] for name in names)
        few = [cell for cell in cells if len(metrics.get(cell, ())) < 2]
        verdict = UNDECIDED
        because = "too few runs" + (f" of {', '.join(few)}" if few else "")
    elif unseen:
        verdict = NOT_REPRODUCED
        because = f"no such difference seen in {unseen} {of}"
    return Verdict(claim, outcomes, verdict, because)


def _outcome(test, metrics, noise, confidence):
    lower, than = (_values(name, metrics) for name in (test.lower, test.than))
    seeds = sorted(lower.keys() & than.keys())
    differences = [lower[seed] - than[seed] for seed in seeds]
    half_width = math.nan
    # If other runs failed, the only one left is no fair sample.
    if len(seeds) > 1:
        if ":" in test.lower + test.than:
            # Other metrics have their own noise.
            half_width = mean_interval(differences, confidence)
        elif noise is not None:
            half_width = noise.half_width(len(seeds), confidence)
    difference = statistics.fmean(differences) if seeds else math.nan
    return Outcome(test, difference, half_width, len(seeds))


def _values(name, metrics):
    """Returns `{seed: value}` of `cell` or `cell:metric`."""
    cell, _, metric = name.partition(":")
    return {
        seed: value
        for seed, found in metrics.get(cell, {}).items()
        if (value := found.get(metric or "nats")) is not None
    }
