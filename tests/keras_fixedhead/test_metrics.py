"""Recall, reciprocal rank, precision and gain against counting by hand."""

import sys

import numpy as np
import pytest

from keras_fixedhead.metrics import (
    measure_queries,
    measure_rankings,
    shared_neighbours,
)

pytestmark = pytest.mark.any_backend

# Three queries; their right documents are found at rank 1, at rank 3, and at
# rank 2 with another one missing.
DOCUMENTS = np.array([[7, 2, 5, 11], [2, 5, 7, 3], [3, 11, -1, -1]])
RELEVANT = [[7], [7], [11, 2]]
SECOND, THIRD = 1 / np.log2(3), 1 / 2  # of a gain
HALF = SECOND / (1 + SECOND)  # two documents, one of them found second


@pytest.mark.parametrize(
    "k, recalls, ranks, gains",
    [
        (1, [1, 0, 0], [1, 0, 0], [1, 0, 0]),
        (2, [1, 0, 1 / 2], [1, 0, 1 / 2], [1, 0, HALF]),
        (10, [1, 1, 1 / 2], [1, 1 / 3, 1 / 2], [1, THIRD, HALF]),
    ],
)
def test_by_hand(k, recalls, ranks, gains):
    expected = {f"R@{k}": recalls, f"RR@{k}": ranks, f"nDCG@{k}": gains}
    found = measure_rankings(DOCUMENTS, RELEVANT, list(expected))
    assert found == pytest.approx({k: np.mean(x) for k, x in expected.items()})


def test_precision_by_hand():
    # The third query's second relevant document is not ranked.
    relevant = [[7, 5], [7], [11, 2]]
    expected = [(1 + 2 / 3) / 2, 1 / 3, 1 / 2 / 2]
    [each] = measure_queries(DOCUMENTS, relevant, ["AP"]).values()
    np.testing.assert_allclose(each, expected)
    [mean] = measure_rankings(DOCUMENTS, relevant, ["AP"]).values()
    assert mean == pytest.approx(np.mean(expected))


def test_scores_are_gains():
    # 3 at rank 1 and 2 at rank 2; the best order has them so, too.
    graded = [{2: 1, 7: 3}, {7: 3, 2: 2}, {11: 1, 2: 1}]
    gains = [1, (2 + 3 * THIRD) / (3 + 2 * SECOND), HALF]
    found = measure_rankings(DOCUMENTS, graded, ["nDCG@10", "R@1"])
    recall = (1 / 2 + 1 / 2 + 0) / 3
    assert found == pytest.approx({"nDCG@10": np.mean(gains), "R@1": recall})


@pytest.mark.parametrize("relevant", [[[7], [7]], [[7], [], [2]]])
def test_refuses(relevant):
    with pytest.raises(ValueError, match="for each row of `documents`"):
        measure_rankings(DOCUMENTS, relevant, ["R@1"])


def test_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(ImportError, match=r"fixedhead\[retrieval\]"):
        measure_rankings(DOCUMENTS, RELEVANT, ["RR@1"])["RR@1"]


def test_neighbours_by_hand():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=(23, 5)), rng.normal(size=(23, 7))
    shared = []
    for i in range(23):
        nearest = [
            sorted(
                (j for j in range(23) if j != i),
                key=lambda j: -(vectors[i] @ vectors[j]),
            )[:3]
            for vectors in (ours, theirs)
        ]
        shared.append(len(set(nearest[0]) & set(nearest[1])) / 3)
    assert 0 < np.mean(shared) < 1
    found = shared_neighbours(ours, theirs, 3)
    assert found == pytest.approx(np.mean(shared))
    assert shared_neighbours(ours, 2 * ours, 3) == 1.0
    # All four others are near.
    assert shared_neighbours(ours[:5], theirs[:5], 10) == 1.0
