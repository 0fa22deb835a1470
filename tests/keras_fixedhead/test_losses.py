"""The contrastive losses against NumPy."""

import numpy as np
import pytest
from keras import ops

from keras_fixedhead.losses import (
    contrastive_loss,
    same_keys,
    symmetric_contrastive_loss,
)


def numpy_loss(embeddings, candidates, labels, temperature, excluded):
    losses = []
    for row, label, out in zip(embeddings, labels, excluded):
        scores = np.array([row @ candidate for candidate in candidates])
        kept = [j for j in range(len(scores)) if j == label or not out[j]]
        exponentials = np.exp(scores[kept] / temperature)
        losses.append(np.log(exponentials.sum()) - scores[label] / temperature)
    return np.array(losses)


@pytest.fixture
def sides():
    """3 of 7 pairs, embeddings of size 5, the first candidate is pair 4."""
    rng = np.random.default_rng(3)
    queries, documents = rng.normal(size=(2, 7, 5)).astype("float32")
    excluded = rng.random((3, 7)) < 0.3
    excluded[0, 4] = True  # its own
    return queries, documents, np.array([4, 5, 6], "int32"), excluded


def test_loss_is_the_cross_entropy_of_the_candidates_left(sides):
    queries, documents, labels, excluded = sides
    loss = contrastive_loss(
        ops.convert_to_tensor(queries[4:]),
        ops.convert_to_tensor(documents),
        ops.convert_to_tensor(labels),
        0.7,
        ops.convert_to_tensor(excluded),
    )
    expected = numpy_loss(queries[4:], documents, labels, 0.7, excluded)
    np.testing.assert_allclose(loss, expected, atol=1e-5)


def test_symmetric_loss_is_the_mean_of_both_directions(sides):
    queries, documents, labels, excluded = sides
    loss = symmetric_contrastive_loss(
        *map(
            ops.convert_to_tensor,
            (queries[4:], documents[4:], queries, documents, labels),
        ),
        temperature=0.3,
        excluded=ops.convert_to_tensor(excluded),
    )
    expected = (
        numpy_loss(queries[4:], documents, labels, 0.3, excluded)
        + numpy_loss(documents[4:], queries, labels, 0.3, excluded)
    ) / 2
    np.testing.assert_allclose(loss, expected, atol=1e-5)


def test_bfloat16_embeddings_give_a_float32_loss(sides):
    queries, documents, labels, excluded = sides
    loss = contrastive_loss(
        ops.cast(queries[4:], "bfloat16"),
        ops.cast(documents, "bfloat16"),
        ops.convert_to_tensor(labels),
        0.01,
        ops.convert_to_tensor(excluded),
    )
    assert ops.dtype(loss) == "float32"
    assert np.isfinite(ops.convert_to_numpy(loss)).all()


def test_pairs_are_duplicates_when_any_key_is_equal():
    keys = np.array([[1, 10], [2, 20]])
    candidates = np.array([[1, 99], [2, 10], [10, 1], [2, 20], [0, 0]])
    expected = [
        [True, True, False, False, False],
        [False, True, False, True, False],
    ]
    found = same_keys(
        ops.convert_to_tensor(keys), ops.convert_to_tensor(candidates)
    )
    np.testing.assert_array_equal(found, expected)
