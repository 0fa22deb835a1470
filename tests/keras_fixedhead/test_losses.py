"""The losses against NumPy."""

import numpy as np
import pytest
from keras import ops
from scipy.special import logsumexp, rel_entr, softmax

from keras_fixedhead.losses import (
    contrastive_loss,
    same_keys,
    similarity_loss,
    symmetric_contrastive_loss,
)
from tests import tiny_models


def numpy_loss(embeddings, candidates, labels, temperature, excluded):
    losses = []
    for row, label, out in zip(embeddings, labels, excluded):
        scores = candidates @ row / temperature
        kept = [j for j in range(len(scores)) if j == label or not out[j]]
        losses.append(logsumexp(scores[kept]) - scores[label])
    return np.array(losses)


def tensors(*arrays):
    return [ops.convert_to_tensor(x) for x in arrays]


@pytest.fixture
def sides():
    """3 of 7 pairs, embeddings of size 5, the first candidate is pair 4."""
    rng = np.random.default_rng(3)
    queries, documents = rng.normal(size=(2, 7, 5)).astype("float32")
    excluded = rng.random((3, 7)) < 0.3
    excluded[0, 4] = True  # its own
    return queries, documents, np.array([4, 5, 6], "int32"), excluded


@pytest.mark.parametrize("count", [None, 11])
def test_symmetric_loss_is_the_mean_of_both_directions(sides, count):
    """Of the cross entropy of the candidates left, hard negatives included."""
    queries, documents, labels, excluded = sides
    rng = np.random.default_rng(7)
    negatives = rng.normal(size=(count or 0, 5)).astype("float32")
    not_wrong = rng.random((3, count or 0)) < 0.3
    more = dict(negatives=negatives, excluded_negatives=not_wrong)
    loss = symmetric_contrastive_loss(
        *tensors(queries[4:], documents[4:], queries, documents, labels),
        temperature=0.3,
        excluded=ops.convert_to_tensor(excluded),
        **tiny_models.tensors(more if count else {}),
    )
    forward = numpy_loss(
        queries[4:],
        np.concatenate([documents, negatives]),
        labels,
        0.3,
        np.concatenate([excluded, not_wrong], axis=1),
    )
    backward = numpy_loss(documents[4:], queries, labels, 0.3, excluded)
    np.testing.assert_allclose(loss, (forward + backward) / 2, atol=1e-5)


@pytest.mark.any_backend
def test_bfloat16_embeddings_give_a_float32_loss(sides, distilled):
    queries, documents, labels, excluded = sides
    halves = [ops.cast(x, "bfloat16") for x in (queries[4:], documents)]
    student, teacher = (ops.cast(x, "bfloat16") for x in distilled)
    for loss in (
        contrastive_loss(*halves, *tensors(labels), 0.01, *tensors(excluded)),
        similarity_loss(
            *(student, student, teacher, teacher),
            labels=ops.arange(7, dtype="int32"),
            temperature=0.01,
        ),
    ):
        assert ops.dtype(loss) == "float32"
        assert np.isfinite(ops.convert_to_numpy(loss)).all()


def test_pairs_are_duplicates_when_any_key_is_equal():
    keys = np.array([[1, 10], [2, 20]])
    candidates = np.array([[1, 99], [2, 10], [10, 1], [2, 20], [0, 0]])
    expected = [
        [True, True, False, False, False],
        [False, True, False, True, False],
    ]
    found = same_keys(*tensors(keys, candidates))
    np.testing.assert_array_equal(found, expected)


@pytest.fixture
def distilled():
    """Unit vectors of 7 texts: a student's of size 5, a teacher's of 11."""
    rng = np.random.default_rng(5)
    made = [rng.normal(size=(7, size)).astype("float32") for size in (5, 11)]
    return [x / np.linalg.norm(x, axis=1, keepdims=True) for x in made]


@pytest.mark.parametrize("rows", [[0, 1, 2], [6, 0]])
def test_similarity_loss_is_the_divergence_over_the_others(distilled, rows):
    student, teacher = distilled
    expected = []
    for i in rows:
        others = [j for j in range(7) if j != i]
        both = [softmax(x[others] @ x[i] / 0.3) for x in (teacher, student)]
        expected.append(rel_entr(*both).sum())
    loss = similarity_loss(
        *tensors(student[rows], student, teacher[rows], teacher),
        labels=ops.convert_to_tensor(np.array(rows, "int32")),
        temperature=0.3,
    )
    np.testing.assert_allclose(loss, expected, atol=1e-5)
