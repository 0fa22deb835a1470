"""What attention_report is to return, by hand in NumPy."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from keras import ops


def randomize(model):
    """Large enough for attention that is far from uniform."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(0.5 * rng.normal(size=weight.shape))
    return model


def softmax_entropy(scores):
    """The mean entropy of rows `[B, N, T, S]` that attend, per head."""
    scores = ops.convert_to_numpy(scores).astype("float64")
    return scipy.stats.entropy(scores, axis=-1).mean((0, 2))


def numpy_figures(query, key, value, allowed, scale=None):
    """One head on one sequence; only its real tokens."""
    scale = scale or 1 / np.sqrt(query.shape[1])
    logits = np.empty((len(query), len(key)))
    for i in range(len(query)):
        for j in range(len(key)):
            logits[i, j] = scale * (query[i] @ key[j])
    scores = np.zeros_like(logits)
    for i in range(len(query)):
        weights = np.where(allowed[i], np.exp(logits[i]), 0.0)
        scores[i] = weights / weights.sum()
    epsilon = np.finfo("float32").eps
    figures = {}
    for name, matrix in (("logit", logits), ("attention", scores)):
        values = np.linalg.svd(matrix, compute_uv=False)
        figures[f"{name}_rank"] = np.linalg.matrix_rank(
            matrix, tol=values[0] * max(matrix.shape) * epsilon
        )
        figures[f"{name}_effective_rank"] = np.exp(scipy.stats.entropy(values))
    figures["entropy"] = np.mean([scipy.stats.entropy(row) for row in scores])
    return figures, scores @ value


def expected_rows(query, key, value, sizes, places, allowed, scale=None):
    """Rows of one layer, and the condition number of all of its heads.

    Of projections `[B, T, W]`, the real positions of each sequence, a
    function that says where these may attend, and the scale of the logits,
    by default `1 / sqrt(size)`.
    """
    ends = np.cumsum(sizes)
    rows, outputs = [], [[] for _ in places]
    for end, size in zip(ends, sizes):
        columns = slice(end - size, end)
        figures, conditions = [], []
        for i, (queries, keys) in enumerate(places):
            one, output = numpy_figures(
                query[i, queries, columns],
                key[i, keys, columns],
                value[i, keys, columns],
                allowed(queries, keys),
                scale,
            )
            figures.append(one)
            conditions.append(np.linalg.cond(output))
            outputs[i].append(output)
        lengths = [min(map(len, both)) for both in places]
        rows.append(
            {
                "head_size": size,
                "mean_length": np.mean(lengths),
                "longest_length": max(lengths),
                "bottleneck": size < max(lengths),
                **{
                    name: np.mean([f[name] for f in figures])
                    for name in figures[0]
                },
                "condition_number": np.median(conditions),
            }
        )
    together = [np.linalg.cond(np.concatenate(x, -1)) for x in outputs]
    return rows, np.median(together)


def check(report, expected):
    """A report against what `expected_rows` returns for each layer."""
    assert len(report.layers) == len(expected)
    for number, (rows, condition) in enumerate(expected):
        heads = [dataclasses.asdict(x) for x in report.heads_of(number)]
        assert len(heads) == len(rows) == report.layers[number].num_heads
        for head, row in enumerate(rows):
            row = {"layer": number, "head": head, **row}
            assert heads[head].keys() == row.keys()
            check_condition(heads[head], row.pop("condition_number"))
            assert heads[head] == pytest.approx(row, rel=1e-3)
        check_condition(dataclasses.asdict(report.layers[number]), condition)


def check_condition(report, expected):
    """What rounding leaves of a condition number."""
    reported = report.pop("condition_number")
    if expected < 1e4:
        assert reported == pytest.approx(expected, rel=0.01)
    else:
        assert reported > 5e3


def numpy_dense(dense, x):
    """The outputs of a projection `[B, T, W]`, float64."""
    kernel, bias = (
        ops.convert_to_numpy(weight).astype("float64")
        for weight in (dense.kernel, dense.bias)
    )
    return x @ kernel.reshape(x.shape[-1], -1) + bias.ravel()
