"""One run of synthetic contexts: heads of each size fitted to them.

No text and no language model: a single head is trained to attend as a matrix
says. A dense random one has logits of full rank, so that each head smaller
than the sequence misses part of it (Theorem 1 of
https://arxiv.org/abs/2002.07028). One that attends to a single token for each
token needs only a few dimensions to come near, with tokens on a circle.

Shape letters: n sequence length, H head size.
"""

import time
from collections.abc import Callable

import numpy as np

from keras_fixedhead.theory import fit_context, lowest_error
from training.reproduce.cells import Cell
from training.reproduce.scales import Scale

# The share of a one-hot context that is spread over all tokens, since a
# softmax is nowhere 0.
_ELSEWHERE = 0.01
# Standard deviation of a dense context's logits.
_SCALE = 2.0


def draw_context(kind: str, length: int, seed: int) -> np.ndarray:
    """A random float64 context `[n, n]`, whose columns sum to 1.

    Columns of a `dense` one are softmaxes of normal logits. Columns of a
    `one_hot` one are almost 1 at a token, another one for each column.
    """
    rng = np.random.default_rng(seed)
    if kind == "dense":
        context = np.exp(_SCALE * rng.standard_normal((length, length)))
    else:
        context = np.full((length, length), _ELSEWHERE / length)
        context[rng.permutation(length), np.arange(length)] += 1 - _ELSEWHERE
    return context / context.sum(0)


def divergence(context: np.ndarray, scores: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of the scores' columns, in nats.

    Both are `[n, n]`, with columns that sum to 1.
    """
    # Scores may have become 0 in float32.
    scores = np.maximum(scores, np.finfo("float32").tiny)
    return float((context * np.log(context / scores)).sum(0).mean())


def fit(
    cell: Cell,
    scale: Scale,
    seed: int,
    should_stop: Callable[[], bool],
    report: Callable[[int], None],
) -> dict | None:
    """Fits heads of each size H to one context, and measures what they miss.

    The metrics are `kl_H`, the divergence that is reached; `log_error_H`, the
    error of the centred logits (root of summed squares) relative to all of
    them; `bound_H`, the least such error (`theory.lowest_error`); and
    `seconds`. If `should_stop()` after a head, the result is None. `report`
    takes the number of updates of all heads so far.
    """
    started = time.monotonic()
    context = draw_context(cell.contexts, scale.context_length, seed)
    log = np.log(context)
    whole = np.linalg.norm(log - log.mean(0))
    metrics = {}
    for number, size in enumerate(scale.context_head_sizes, start=1):
        found = fit_context(context, size, steps=scale.context_steps, seed=seed)
        metrics[f"kl_{size}"] = divergence(context, found.scores)
        metrics[f"log_error_{size}"] = float(found.log_error / whole)
        metrics[f"bound_{size}"] = float(lowest_error(context, size) / whole)
        report(number * scale.context_steps)
        if should_stop():
            return None
    return {**metrics, "seconds": time.monotonic() - started}
