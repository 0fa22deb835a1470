"""Theorem 1: what a head computes, what it misses, what training reaches.

And the two depths, against their tables.
"""

import random

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead.theory import (
    attention_layer,
    construct_projections,
    depth_threshold,
    fit_context,
    fitted_depth_threshold,
    lowest_error,
)


def softmax(logits):
    e = np.exp(logits - logits.max(0))
    return e / e.sum(0)


def make_context(size, seed=0, rank=None):
    """A random context, with a rank of its logits if one is given."""
    rng = np.random.default_rng(seed)
    if rank is None:
        return softmax(rng.standard_normal((size, size)))
    factors = rng.standard_normal((2, size, rank))
    # A constant for each column, which the softmax does not see.
    return softmax(factors[0] @ factors[1].T + rng.standard_normal(size))


def make_inputs(dim, size, seed=1):
    return np.random.default_rng(seed).standard_normal((dim, size))


def layer_context(layer, inputs, dtype="float32"):
    """What the layer attends to, columns as in the paper."""
    scores = layer(inputs.T[None].astype(dtype), return_attention_scores=True)
    return ops.convert_to_numpy(scores[1])[0, 0].T


SIZES = [
    # d, n, head size, rank of the logits
    (29, 13, None, None),
    (31, 11, 3, 3),
    *(
        pytest.param(*size, marks=pytest.mark.any_backend)
        for size in [
            (29, 13, 12, None),
            (29, 13, 19, None),
            (13, 13, 12, None),
            (31, 11, 7, 3),
            (7, 2, 1, None),
        ]
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("dim", "size", "head_size", "rank"), SIZES)
def test_the_layer_computes_the_context(
    request, dim, size, head_size, rank, dtype
):
    if dtype == "float64":
        request.getfixturevalue("float64")
    context, inputs = make_context(size, rank=rank), make_inputs(dim, size)
    if dim == size:  # square random matrices are badly conditioned
        inputs = np.linalg.qr(inputs)[0]
    projections = construct_projections(inputs, context, head_size)
    for projection in projections:
        assert projection.shape == (head_size or size, dim)
        assert projection.dtype == "float64"
    layer = attention_layer(*projections, dtype=dtype)
    assert layer.head_sizes == (head_size or size,)
    computed = layer_context(layer, inputs, dtype)
    assert computed.dtype == dtype
    tolerance = {"float32": 1e-5, "float64": 1e-10}[dtype]
    np.testing.assert_allclose(computed, context, rtol=0, atol=tolerance)


def test_both_projections_share_the_logits():
    """Neither is large where the other is small, and logits are centred."""
    context = make_context(13)
    query, key = construct_projections(np.eye(13), context)
    singular = np.linalg.svd([query, key], compute_uv=False)
    np.testing.assert_allclose(*singular, atol=1e-10)
    np.testing.assert_allclose((key.T @ query).sum(0), 0, atol=1e-10)


def test_output_is_what_was_attended_to():
    context, inputs = make_context(5), make_inputs(11, 5)
    layer = attention_layer(*construct_projections(inputs, context, 7))
    output = layer(inputs.T[None].astype("float32"))[0]
    expected = inputs @ context
    expected[7:] = 0
    np.testing.assert_allclose(output, expected.T, atol=1e-5)


def test_a_context_in_float32_has_the_rank_it_had():
    context = make_context(11, rank=3).astype("float32")
    query, _ = construct_projections(np.eye(11), context, head_size=3)
    assert query.shape == (3, 11)
    with pytest.raises(ValueError, match="at least 3,"):
        construct_projections(np.eye(11), context, head_size=2)


def bad(value):
    """A context of 5 tokens with one number wrong."""
    context = make_context(5)
    context[2, 1] = value
    return context


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lowest_error, (np.ones(5), 2), r"square matrix.*shape \(5,\)"),
        (lowest_error, (bad(-0.25), 2), "positive.*smallest number of -0.25"),
        (lowest_error, (make_context(5) * 1.5, 2), "to 1.5$"),
        (lowest_error, (make_context(5), 0), "`head_size` must be a positive"),
        (construct_projections, (np.full((7, 5), np.nan), bad(1)), "a finite"),
        (
            construct_projections,
            (make_inputs(7, 2) @ make_inputs(2, 5), make_context(5)),
            "rank 2 and 5 tokens",
        ),
        (
            construct_projections,
            (make_inputs(7, 3), make_context(5)),
            "each of the tokens of `inputs`.*5, 5",
        ),
        (
            attention_layer,
            (np.ones((3, 5)), np.ones((2, 5))),
            r"\(3, 5\) and \(2, 5\)",
        ),
        (fit_context, (make_context(5), 2, 9, np.nan), "`learning_rate`"),
    ],
)
def test_errors(function, arguments, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        function(*arguments)


@pytest.mark.parametrize("size", [2, 7, 23])
def test_no_error_from_one_under_the_length(size):
    context = make_context(size)
    errors = [lowest_error(context, h) for h in range(1, size + 3)]
    assert max(errors[size - 2 :]) < 1e-10
    assert all(e > 1e-3 for e in errors[: size - 2])
    assert errors[: size - 1] == sorted(errors[: size - 1], reverse=True)


@pytest.mark.parametrize("head_size", [3, 5])
def test_lowest_error_is_that_of_alternating_least_squares(head_size):
    """Any two factors and any constant for each column, from random ones."""
    size = 11
    log = np.log(make_context(size))
    keys = np.random.default_rng(3).standard_normal((size, head_size))
    for _ in range(300):
        # Queries and constants of the best fit to these keys, then keys.
        factors = np.column_stack([keys, np.ones(size)])
        solved = np.linalg.lstsq(factors, log)[0]
        queries, constants = solved[:-1], solved[-1]
        keys = np.linalg.lstsq(queries.T, (log - constants).T)[0].T
    reached = np.linalg.norm(keys @ queries + constants - log)
    lowest = lowest_error(make_context(size), head_size)
    assert lowest * (1 - 1e-9) < reached < lowest * 1.01


@pytest.mark.slow
@pytest.mark.any_backend
def test_training_reaches_every_context_from_one_under_the_length():
    for size, seed in ((7, 0), (7, 1), (31, 0)):
        context = make_context(size, seed)
        fit = fit_context(context, size - 1, seed=seed)
        assert fit.total_variation < 1e-2
        assert fit.largest_total_variation < 1e-2
        np.testing.assert_allclose(fit.scores, context, atol=1e-2)


@pytest.mark.slow
@pytest.mark.any_backend
def test_training_with_small_heads_misses():
    context = make_context(31)
    fits = [fit_context(context, h, steps=300) for h in (3, 7, 15)]
    missed = [fit.total_variation for fit in fits]
    assert missed == sorted(missed, reverse=True)
    assert missed[0] > 0.2 and missed[1] > 0.1 and missed[2] > 0.04
    for head_size, fit in zip((3, 7, 15), fits):
        lowest = lowest_error(context, head_size)
        assert lowest < fit.log_error < 2 * lowest
        distances = abs(fit.scores - context).sum(0) / 2
        assert fit.total_variation == pytest.approx(distances.mean())
        assert fit.largest_total_variation == pytest.approx(distances.max())
        log = np.log(fit.scores) - np.log(context)
        assert fit.log_error == pytest.approx(
            np.linalg.norm(log - log.mean(0)), rel=1e-3
        )


@pytest.mark.any_backend
def test_training_is_reproducible_and_leaves_the_seed():
    context = make_context(7)
    keras.utils.set_random_seed(5)
    expected = random.random(), np.random.rand(), keras.random.uniform([3])
    keras.utils.set_random_seed(5)
    fits = [fit_context(context, 3, steps=100, seed=s) for s in (0, 0, 1)]
    drawn = random.random(), np.random.rand(), keras.random.uniform([3])
    np.testing.assert_array_equal(fits[0].scores, fits[1].scores)
    assert abs(fits[0].scores - fits[2].scores).max() > 1e-6
    for new, old in zip(drawn, expected):
        np.testing.assert_array_equal(new, old)


@pytest.mark.any_backend
def test_the_learning_rate_falls_to_zero_at_the_last_step():
    """What an execution has of steps beyond it changes nothing."""
    context = make_context(5)
    fit = fit_context(context, 2, steps=1)
    start = np.random.default_rng(0).standard_normal((2, 2, 5))
    moved = abs(
        fit.scores - layer_context(attention_layer(*start), np.eye(5))
    ).max()
    assert 1e-3 < moved < 0.2


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("hidden_dim", "theory", "fit"),
    [(256, 5.05, 9.1), (1024, 6.31, 34.1)],
)
def test_published_depths(hidden_dim, theory, fit):
    assert depth_threshold(hidden_dim) == pytest.approx(theory, abs=0.005)
    assert fitted_depth_threshold(hidden_dim) == pytest.approx(fit, abs=0.05)
