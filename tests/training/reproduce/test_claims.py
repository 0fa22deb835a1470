"""Claims, the tests that decide them, and the noise that enters these."""

import numpy as np
import pytest
from scipy import stats

from training.reproduce.cells import SCALES, grid
from training.reproduce.claims import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    Claim,
    Comparison,
    Noise,
    decide,
    estimate_noise,
    read_claims,
)

NOISE = Noise(deviation=0.01, freedom=40)


def figures(**cells):
    """Figures of cells, the first seed being 1."""
    return {
        name: {seed: {"nats": x} for seed, x in enumerate(values, start=1)}
        for name, values in cells.items()
    }


@pytest.mark.parametrize("scale", SCALES)
def test_each_claim_is_about_cells_that_there_are(scale):
    scale = SCALES[scale]
    cells = {cell.name: cell for cell in grid(scale)}
    claims = read_claims().claims
    assert len({claim.name for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.tests or set(claim.not_testable) == set(SCALES)
        for test in claim.tests:
            for name in (test.lower, test.than):
                name, _, figure = name.partition(":")
                if figure.startswith("kl_"):
                    sizes = scale.context_head_sizes
                    assert int(figure.removeprefix("kl_")) in sizes
                    assert cells[name].contexts
                else:
                    assert cells[name].shape


def test_the_effect_that_was_said_to_be_detectable():
    claims = read_claims()
    models = sum(not cell.contexts for cell in grid(SCALES["cpu"]))
    seeds = SCALES["cpu"].seeds
    expected = Noise(claims.noise, (models - 1) * (seeds - 1))
    effect = expected.smallest_effect(seeds, claims.confidence)
    for claim in claims.claims:
        for test in claim.tests:
            if ":" not in test.lower:
                assert test.smallest_effect == pytest.approx(effect, rel=0.05)


def claim(*tests, **arguments):
    comparisons = tuple(Comparison(*test) for test in tests)
    return Claim("name", "source", "says", comparisons, **arguments)


A_UNDER_B = claim(("a", "b"))
BOTH = claim(("a", "b"), ("b", "c"))
NO_WORSE = claim(("a", "b", 0.05))
TOO_SMALL = claim(("a", "b"), not_testable={"cpu": "too small"})


@pytest.mark.parametrize(
    ("claim", "known", "expected"),
    [
        (A_UNDER_B, {"a": [1, 1.1, 1.2], "b": [1.1, 1.2, 1.3]}, REPRODUCED),
        (A_UNDER_B, {"a": [1] * 3, "b": [1.01] * 3}, NOT_REPRODUCED),
        (A_UNDER_B, {"a": [1.1, 1.2, 1.3], "b": [1, 1.1, 1.2]}, NOT_REPRODUCED),
        (A_UNDER_B, {"a": [1, 1.1, 1.2], "b": []}, UNDECIDED),
        (BOTH, {"a": [1] * 3, "b": [1.1] * 3, "c": [1.2] * 3}, REPRODUCED),
        (BOTH, {"a": [1] * 3, "b": [1.1] * 3, "c": [1.1] * 3}, NOT_REPRODUCED),
        # One that is the other way round decides, whatever is missing.
        (BOTH, {"a": [1.1] * 3, "b": [1] * 3}, NOT_REPRODUCED),
        (BOTH, {"a": [1] * 3, "b": [1.1] * 3}, UNDECIDED),
        (NO_WORSE, {"a": [1.01] * 3, "b": [1] * 3}, REPRODUCED),
        (NO_WORSE, {"a": [1.1] * 3, "b": [1] * 3}, NOT_REPRODUCED),
        (TOO_SMALL, {"a": [1] * 3, "b": [2] * 3}, NOT_TESTABLE),
    ],
)
def test_verdicts(claim, known, expected):
    found = decide(claim, "cpu", figures(**known), NOISE, 0.99)
    assert found.verdict == expected
    if claim is TOO_SMALL:
        found = decide(claim, "gpu", figures(**known), NOISE, 0.99)
        assert found.verdict == REPRODUCED


def test_a_difference_is_of_the_seeds_that_both_have():
    known = figures(a=[1.0, 9.0, 1.2], b=[1.1, 1.2, 1.3])
    del known["a"][2]
    [outcome] = decide(A_UNDER_B, "cpu", known, NOISE, 0.99).outcomes
    assert outcome.difference == pytest.approx(-0.1)
    assert outcome.seeds == 2


def test_one_seed_decides_nothing():
    known = figures(a=[1.0, 1.1, 1.2], b=[9.0])
    found = decide(A_UNDER_B, "cpu", known, NOISE, 0.99)
    assert found.verdict == UNDECIDED and found.because.endswith("of b")
    [outcome] = found.outcomes
    assert outcome.seeds == 1 and outcome.difference == pytest.approx(-8.0)


def test_other_figures_have_a_noise_of_their_own():
    compared = claim(("a:kl_4", "b:kl_4"))
    known = {
        "a": {1: {"kl_4": 1.0}, 2: {"kl_4": 1.1}, 3: {"kl_4": 1.0}},
        "b": {1: {"kl_4": 3.0}, 2: {"kl_4": 3.0}, 3: {"kl_4": 3.1}},
    }
    found = decide(compared, "cpu", known, None, 0.99)
    [outcome] = found.outcomes
    differences = np.array([-2.0, -1.9, -2.1])
    low, _ = stats.t.interval(
        0.99, 2, differences.mean(), stats.sem(differences)
    )
    assert outcome.difference - outcome.half_width == pytest.approx(low)
    assert found.verdict == REPRODUCED


def test_noise_leaves_out_cells_and_seeds():
    rng = np.random.default_rng(3)
    cells, seeds = rng.normal(size=[200, 1]), rng.normal(size=[1, 3])
    found = estimate_noise(
        (cells + seeds + rng.normal(0, 0.02, [200, 3])).tolist()
    )
    assert found.deviation == pytest.approx(0.02, rel=0.1)
    assert found.freedom == 398
    assert estimate_noise([[1.0, 2.0, 3.0]]) is None
    assert estimate_noise([]) is None


def test_intervals_hold_what_they_should():
    rng = np.random.default_rng(5)
    held = detected = 0
    for _ in range(400):
        runs = rng.normal(0, 0.01, [12, 3])
        found = estimate_noise(runs.tolist())
        width = found.half_width(3, 0.99)
        difference = runs[0].mean() - runs[1].mean()
        held += abs(difference) < width
        effect = NOISE.smallest_effect(3, 0.99)
        detected += abs(difference + effect) > NOISE.half_width(3, 0.99)
    assert held / 400 > 0.975
    assert detected / 400 == pytest.approx(0.8, abs=0.06)
