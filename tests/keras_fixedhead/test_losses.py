"""The losses against NumPy."""

import numpy as np
import pytest
from keras import ops

from keras_fixedhead.losses import (
    contrastive_loss,
    relation_loss,
    same_keys,
    similarity_loss,
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


def test_hard_negatives_are_further_documents(sides):
    queries, documents, labels, excluded = sides
    rng = np.random.default_rng(7)
    negatives = rng.normal(size=(11, 5)).astype("float32")
    not_wrong = rng.random((3, 11)) < 0.3
    loss = symmetric_contrastive_loss(
        *map(
            ops.convert_to_tensor,
            (queries[4:], documents[4:], queries, documents, labels),
        ),
        temperature=0.3,
        excluded=ops.convert_to_tensor(excluded),
        negatives=ops.convert_to_tensor(negatives),
        excluded_negatives=ops.convert_to_tensor(not_wrong),
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


def numpy_softmax(logits):
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def numpy_divergence(teacher, student):
    return (teacher * np.log(teacher / student)).sum()


@pytest.fixture
def distilled():
    """Unit vectors of 7 texts: a student's of size 5, a teacher's of 11."""
    rng = np.random.default_rng(5)
    made = []
    for size in (5, 11):
        vectors = rng.normal(size=(7, size)).astype("float32")
        made.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return made


@pytest.mark.parametrize("rows", [[0, 1, 2], [3, 4, 5, 6], [6, 0]])
def test_similarity_loss_is_the_divergence_over_the_others(distilled, rows):
    student, teacher = distilled
    expected = []
    for i in rows:
        others = [j for j in range(7) if j != i]
        expected.append(
            numpy_divergence(
                *(
                    numpy_softmax(vectors[others] @ vectors[i] / 0.3)
                    for vectors in (teacher, student)
                )
            )
        )
    loss = similarity_loss(
        *map(
            ops.convert_to_tensor,
            (student[rows], student, teacher[rows], teacher),
        ),
        labels=ops.convert_to_tensor(np.array(rows, "int32")),
        temperature=0.3,
    )
    np.testing.assert_allclose(loss, expected, atol=1e-5)


def test_similarity_loss_ignores_what_a_text_has_with_itself(distilled):
    student, teacher = distilled
    labels = ops.arange(7, dtype="int32")
    # Other lengths change the products with itself, and these alone.
    rows = [ops.convert_to_tensor(v[:1]) for v in (student, teacher)]
    changed = [np.concatenate([3 * v[:1], v[1:]]) for v in (student, teacher)]
    losses = [
        similarity_loss(
            rows[0],
            ops.convert_to_tensor(candidates),
            rows[1],
            ops.convert_to_tensor(teacher_candidates),
            labels[:1],
            0.3,
        )
        for candidates, teacher_candidates in (distilled, changed)
    ]
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, losses))


def test_similarity_loss_is_zero_where_similarities_are_equal(distilled):
    student = distilled[0]
    rotated = student @ np.linalg.qr(np.eye(5) + student[:5])[0]
    loss = similarity_loss(
        *map(
            ops.convert_to_tensor,
            (student, student, *[rotated.astype("float32")] * 2),
        ),
        labels=ops.arange(7, dtype="int32"),
        temperature=0.05,
    )
    np.testing.assert_allclose(loss, np.zeros(7), atol=1e-4)


def test_similarity_loss_of_bfloat16_is_float32(distilled):
    student, teacher = (ops.cast(v, "bfloat16") for v in distilled)
    loss = similarity_loss(
        student,
        student,
        teacher,
        teacher,
        labels=ops.arange(7, dtype="int32"),
        temperature=0.01,
    )
    assert ops.dtype(loss) == "float32"
    assert np.isfinite(ops.convert_to_numpy(loss)).all()


def numpy_relation_loss(student, teacher, mask, num_heads):
    losses = []
    for row, real in enumerate(mask.astype(bool)):
        divergences = []
        for head in range(num_heads):
            relations = []
            for projection in (teacher, student):
                tokens = projection[row, real].astype("float64")
                size = tokens.shape[-1] // num_heads
                tokens = tokens[:, head * size : (head + 1) * size]
                logits = tokens @ tokens.T / np.sqrt(size)
                relations.append([numpy_softmax(line) for line in logits])
            divergences += [numpy_divergence(*pair) for pair in zip(*relations)]
        losses.append(np.mean(divergences) if divergences else 0.0)
    return losses


@pytest.fixture
def projections():
    """A student's of width 6 and a teacher's of 15, 5 rows of 13 tokens."""
    rng = np.random.default_rng(7)
    mask = np.arange(13) < np.array([[13], [1], [0], [5], [9]])
    mask[4, 3] = False
    return (
        rng.normal(size=(5, 13, 6)).astype("float32"),
        rng.normal(size=(5, 13, 15)).astype("float32"),
        mask.astype("int32"),
    )


@pytest.mark.parametrize("num_heads", [1, 3])
def test_relation_loss_is_the_mean_divergence_of_real_tokens(
    projections, num_heads
):
    student, teacher, mask = projections
    loss = relation_loss(*map(ops.convert_to_tensor, projections), num_heads)
    np.testing.assert_allclose(
        loss,
        numpy_relation_loss(student, teacher, mask, num_heads),
        atol=1e-5,
    )


def test_relation_loss_does_not_see_padding(projections):
    student, teacher, mask = projections
    padding = mask[..., None] == 0
    loss, other = (
        relation_loss(*map(ops.convert_to_tensor, tensors), 3)
        for tensors in (
            projections,
            (student + 7 * padding, teacher - 5 * padding, mask),
        )
    )
    np.testing.assert_allclose(loss, other, atol=1e-6)


def test_relation_loss_is_zero_where_relations_are_equal(projections):
    student, _, mask = projections
    # The same products of tokens, in heads twice as wide.
    wider = np.concatenate([student, np.zeros_like(student)], axis=-1)
    loss = relation_loss(
        *map(ops.convert_to_tensor, (student, 2**0.25 * wider, mask)), 1
    )
    np.testing.assert_allclose(loss, np.zeros(5), atol=1e-5)
