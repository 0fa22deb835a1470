"""Theorem 1: what a head computes, what it misses, what training reaches."""

import random

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead.theory import (
    attention_layer,
    construct_projections,
    fit_context,
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


BAD_CONTEXTS = [
    (np.ones(5), r"square matrix.*shape \(5,\)"),
    (make_context(5)[:4], r"square matrix.*shape \(4, 5\)"),
    (np.ones((0, 0)), "square matrix"),
    (bad(np.nan), "finite.*1 numbers"),
    (bad(np.inf), "finite"),
    (bad(0.0), "positive.*smallest number of 0$"),
    (bad(-0.25), "positive.*smallest number of -0.25"),
    (make_context(5) * [1, 1, 1.5, 1.25, 1], "sums to 1.5$"),
    (make_context(5).T, "transpose.*a column that sums to "),
]


@pytest.mark.parametrize(("context", "message"), BAD_CONTEXTS)
@pytest.mark.parametrize(
    "function",
    [
        lambda context: construct_projections(make_inputs(7, 5), context),
        lambda context: lowest_error(context, 2),
        lambda context: fit_context(context, 2),
    ],
    ids=["construct_projections", "lowest_error", "fit_context"],
)
def test_bad_contexts(function, context, message):
    with pytest.raises(ValueError, match=f"(?s)context.*{message}"):
        function(context)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.ones(5), r"`inputs` must be a matrix.*shape \(5,\)"),
        (np.ones((0, 5)), "`inputs` must be a matrix"),
        (np.full((7, 5), np.nan), "`inputs`.*finite.*35 numbers"),
        (make_inputs(4, 5), "`inputs`.*full column rank.*rank 4 and 5 tokens"),
        (make_inputs(7, 2) @ make_inputs(2, 5), "rank 2 and 5 tokens"),
        (make_inputs(7, 3), "each of the 3 tokens.*5, 5"),
    ],
)
def test_bad_inputs(inputs, message):
    with pytest.raises(ValueError, match=message):
        construct_projections(inputs, make_context(5))


@pytest.mark.parametrize("head_size", [0, -1, 2.0, True, "3"])
def test_head_size_is_a_positive_integer(head_size):
    for function in (
        lambda: construct_projections(np.eye(5), make_context(5), head_size),
        lambda: lowest_error(make_context(5), head_size),
        lambda: fit_context(make_context(5), head_size),
    ):
        with pytest.raises(ValueError, match="`head_size` must be a positive"):
            function()


def test_shapes_of_projections():
    with pytest.raises(ValueError, match=r"\(3, 5\) and \(2, 5\)"):
        attention_layer(np.ones((3, 5)), np.ones((2, 5)))


@pytest.mark.parametrize("size", [2, 7, 23])
def test_no_error_from_one_under_the_length(size):
    context = make_context(size)
    errors = [lowest_error(context, h) for h in range(1, size + 3)]
    assert max(errors[size - 2 :]) < 1e-10
    assert all(e > 1e-3 for e in errors[: size - 2])
    assert errors[: size - 1] == sorted(errors[: size - 1], reverse=True)


def test_no_error_from_the_rank_of_the_logits():
    context = make_context(13, rank=5)
    assert lowest_error(context, 5) < 1e-10 < 1e-1 < lowest_error(context, 4)


@pytest.mark.parametrize("head_size", [1, 3, 5, 8])
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


@pytest.mark.slow
@pytest.mark.any_backend
def test_training_with_other_inputs():
    context = make_context(13)
    many, few = make_inputs(29, 13) * 50, make_inputs(5, 13)
    assert fit_context(context, 12, inputs=many).total_variation < 1e-2
    # d < n: no head size is enough.
    assert fit_context(context, 29, inputs=few).total_variation > 0.1


@pytest.mark.any_backend
def test_training_is_reproducible_and_leaves_the_seed():
    context = make_context(7)
    keras.utils.set_random_seed(5)
    expected = random.random(), np.random.rand(), keras.random.uniform([3])
    keras.utils.set_random_seed(5)
    fits = [fit_context(context, 3, steps=150, seed=s) for s in (0, 0, 1)]
    drawn = random.random(), np.random.rand(), keras.random.uniform([3])
    assert fits[0].total_variation == fits[1].total_variation
    np.testing.assert_array_equal(fits[0].scores, fits[1].scores)
    assert abs(fits[0].scores - fits[2].scores).max() > 1e-6
    for new, old in zip(drawn, expected):
        np.testing.assert_array_equal(new, old)


@pytest.mark.any_backend
def test_the_learning_rate_falls_to_zero_at_the_last_step():
    """What an execution has of steps beyond it changes nothing."""
    context = make_context(5)
    one, other = (fit_context(context, 2, steps=s) for s in (1, 50))
    assert one.total_variation > other.total_variation
    start = np.random.default_rng(0).standard_normal((2, 2, 5))
    moved = abs(
        one.scores - layer_context(attention_layer(*start), np.eye(5))
    ).max()
    assert 1e-3 < moved < 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "`steps` must be a positive integer"),
        ({"steps": 1.5}, "`steps` must be a positive integer"),
        ({"learning_rate": 0}, "`learning_rate`.*learning_rate=0"),
        ({"learning_rate": np.nan}, "`learning_rate`"),
        ({"learning_rate": "fast"}, "`learning_rate`.*'fast'"),
        ({"inputs": np.ones((3, 4))}, r"each of the 5 tokens.*\(3, 4\)"),
        ({"inputs": np.zeros((3, 5))}, "not be all zero"),
        ({"inputs": np.ones(5)}, "`inputs` must be a matrix"),
    ],
)
def test_bad_arguments_of_training(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_context(make_context(5), 2, **arguments)
