"""What is claimed, and what the runs say of it.

`claims.yaml` was written before the runs: each claim with its source, the
comparisons that decide it, and the smallest effect that they can show.
"""

import dataclasses
import pathlib

import yaml

from training.reproduce.statistics import Noise, mean_interval

CLAIMS = pathlib.Path(__file__).with_name("claims.yaml")

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
NOT_TESTABLE = "not testable at this size"
UNDECIDED = "not decided yet"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """That one figure is lower than another.

    Attributes:
        lower: A cell, or `cell:figure` where the figure is not `nats`.
        than: The same of what it is to be lower than.
        margin: By how much it may be above and still count as lower; in nats.
        smallest_effect: The difference that is found with a probability of
            0.8, as it was expected before the runs; None where it was not
            known.
    """

    lower: str
    than: str
    margin: float = 0.0
    smallest_effect: float | None = None


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and what decides it.

    Attributes:
        name: Its name.
        source: Where it stands.
        says: What it says.
        tests: All of them must show what they claim.
        not_testable: Why not, by the scale at which it is not.
    """

    name: str
    source: str
    says: str
    tests: tuple[Comparison, ...] = ()
    not_testable: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Claims:
    """All of them.

    Attributes:
        confidence: Of the interval that decides a test.
        noise: The deviation of a run that was expected, in nats.
        claims: The claims.
    """

    confidence: float
    noise: float
    claims: tuple[Claim, ...]


def read_claims() -> Claims:
    """Reads `claims.yaml`."""
    content = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return Claims(
        content["confidence"],
        content["noise"],
        tuple(
            Claim(
                **{
                    **claim,
                    "tests": tuple(
                        Comparison(**t) for t in claim.get("tests", ())
                    ),
                }
            )
            for claim in content["claims"]
        ),
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a test came to.

    Attributes:
        test: The test.
        difference: Mean of `lower` less that of `than`, over the seeds that
            both have; None where there are none.
        half_width: Of its confidence interval.
        seeds: How many there are.
    """

    test: Comparison
    difference: float | None
    half_width: float | None
    seeds: int

    @property
    def shown(self) -> bool | None:
        """Whether it is as claimed; None where it is open.

        False is what the interval excludes, or where it does not tell.
        """
        if self.difference is None or self.half_width is None:
            return None
        return self.difference + self.half_width < self.test.margin

    @property
    def opposite(self) -> bool:
        """Whether the interval says that it is the other way round."""
        return (
            self.shown is not None
            and self.difference - self.half_width > self.test.margin
        )


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: The claim.
        outcomes: Of its tests.
        verdict: One of the four words above.
        because: Why, a sentence or nothing.
    """

    claim: Claim
    outcomes: tuple[Outcome, ...]
    verdict: str
    because: str


def decide(
    claim: Claim,
    scale: str,
    figures: dict[str, dict[int, dict]],
    noise: Noise | None,
    confidence: float,
) -> Verdict:
    """Decides a claim.

    Args:
        claim: The claim.
        scale: Name of the scale.
        figures: Of each cell the figures of its finished runs, by seed.
        noise: Of the nats of language models; None while it is not known.
        confidence: Of the intervals.
    """
    outcomes = tuple(
        _outcome(test, figures, noise, confidence) for test in claim.tests
    )
    if scale in claim.not_testable:
        return Verdict(claim, outcomes, NOT_TESTABLE, claim.not_testable[scale])
    # One that does not hold decides, whatever is missing.
    against = [o for o in outcomes if o.opposite]
    if against:
        return Verdict(
            claim,
            outcomes,
            NOT_REPRODUCED,
            f"it is the other way round in {len(against)} of "
            f"{len(outcomes)} comparisons",
        )
    missing = [o for o in outcomes if o.shown is None]
    if missing:
        cells = dict.fromkeys(
            name.partition(":")[0]
            for o in missing
            for name in (o.test.lower, o.test.than)
            if len(figures.get(name.partition(":")[0], ())) < 2
        )
        return Verdict(
            claim,
            outcomes,
            UNDECIDED,
            f"too few runs of {', '.join(cells)}" if cells else "too few runs",
        )
    open_ones = [o for o in outcomes if not o.shown]
    if open_ones:
        return Verdict(
            claim,
            outcomes,
            NOT_REPRODUCED,
            f"no such difference seen in {len(open_ones)} of "
            f"{len(outcomes)} comparisons",
        )
    return Verdict(claim, outcomes, REPRODUCED, "")


def _outcome(test, figures, noise, confidence):
    lower, than = (_values(name, figures) for name in (test.lower, test.than))
    seeds = sorted(lower.keys() & than.keys())
    if not seeds:
        return Outcome(test, None, None, 0)
    differences = [lower[seed] - than[seed] for seed in seeds]
    difference = sum(differences) / len(seeds)
    if len(seeds) < 2:
        # Where other runs failed, the one that did not is no fair sample.
        half_width = None
    elif ":" in test.lower + test.than:
        # What is no language model has a noise of its own.
        half_width = mean_interval(differences, confidence)
    elif noise is None:
        half_width = None
    else:
        half_width = noise.half_width(len(seeds), confidence)
    return Outcome(test, difference, half_width, len(seeds))


def _values(name, figures):
    """`{seed: value}` of `cell` or `cell:figure`."""
    cell, _, figure = name.partition(":")
    return {
        seed: found[figure or "nats"]
        for seed, found in figures.get(cell, {}).items()
        if found.get(figure or "nats") is not None
    }
