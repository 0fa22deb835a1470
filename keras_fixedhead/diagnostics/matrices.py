"""Ranks, entropies and condition numbers of attention, in NumPy.

Shape letters: N heads, T query length, S key length, H head size, W total
width of all heads.
"""

import numpy as np

# Singular values below this, times the largest and the longer side, are
# rounding noise: queries and keys come from float32.
_EPSILON = np.finfo("float32").eps
_NAMES = (
    "logit_rank",
    "logit_effective_rank",
    "attention_rank",
    "attention_effective_rank",
    "entropy",
    "condition_number",
)


def head_figures(queries, keys, values, scales, allowed):
    """What the heads of one layer do on one sequence.

    Args:
        queries, keys, values: for each of the N heads a float64 array
            `[T, H]`, `[S, H]` and `[S, H_value]`; sizes may differ.
        scales: for each head the factor of its logits.
        allowed: bool array `[N, T, S]`, or `[1, T, S]` for all heads alike.
            Each row allows something.

    Returns:
        A dictionary of float arrays `[N]`, see `HeadReport`, and the
        condition number of all heads side by side, a float. All are NaN if
        an argument is not finite.
    """
    if not all(np.isfinite(x).all() for x in (*queries, *keys, *values)):
        return {name: np.full(len(queries), np.nan) for name in _NAMES}, np.nan
    logits = np.stack(
        [scale * q @ k.T for q, k, scale in zip(queries, keys, scales)]
    )
    scores = np.where(allowed, logits, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores = scores / scores.sum(-1, keepdims=True)
    outputs = [weights @ value for weights, value in zip(scores, values)]
    figures = (
        *_ranks(
            [_product(q, k) for q, k in zip(queries, keys)], logits.shape[1:]
        ),
        *_ranks(scores, logits.shape[1:]),
        _entropy(scores).mean(-1),
        np.array([_condition(x) for x in outputs]),
    )
    together = _condition(np.concatenate(outputs, axis=-1))
    return dict(zip(_NAMES, figures)), together


def _product(query, key):
    """A matrix with the singular values of `query @ key.T` that are not 0.

    `[H, H]` where the head is smaller than the sequences, which is faster.
    """
    if query.shape[-1] < min(len(query), len(key)):
        query, key = (np.linalg.qr(x, mode="r") for x in (query, key))
    return query @ key.T


def _ranks(matrices, shape):
    """Numerical and effective ranks `[N]` of matrices of a shape.

    Smaller matrices may stand for them that lack singular values of 0.
    """
    values = np.zeros([len(matrices), min(shape)])
    for row, matrix in zip(values, matrices):
        found = np.linalg.svd(matrix, compute_uv=False)
        row[: len(found)] = found
    largest = values.max(-1, keepdims=True)
    ranks = (values > largest * max(shape) * _EPSILON).sum(-1)
    total = values.sum(-1, keepdims=True)
    shares = values / np.where(total > 0, total, 1.0)
    # A matrix of zeros has rank 0.
    return ranks, np.where(ranks > 0, np.exp(_entropy(shares)), 0.0)


def _entropy(shares):
    """The entropy of the last axis, nats; 0 log 0 is 0."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(-1)


def _condition(matrix):
    """The largest singular value by the smallest; inf below full rank."""
    values = np.linalg.svd(matrix, compute_uv=False)
    if values[-1] <= values[0] * max(matrix.shape) * _EPSILON:
        return np.inf
    return float(values[0] / values[-1])
