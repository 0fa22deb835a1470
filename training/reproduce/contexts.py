"""One run of synthetic contexts: heads of each size fitted to them.

No text and no language model: a single head is trained to attend as a matrix
says. A dense random one has logits of full rank, so that each head smaller
than the sequence misses some of it (Theorem 1 of
https://arxiv.org/abs/2002.07028); one that attends to one token for each token
needs no more than a few dimensions to come near, where tokens lie on a circle.

Shape letters: n sequence length, H head size.
"""

import time
from collections.abc import Callable

import numpy as np

from keras_fixedhead.theory import fit_context, lowest_error
from training.reproduce.cells import Cell
from training.reproduce.scales import Scale

# What a token of a one-hot context gives to all tokens together: a softmax
# gives something to each.
_ELSEWHERE = 0.01
# Standard deviation of the logits of a dense one.
_SCALE = 2.0


def draw_context(kind: str, length: int, seed: int) -> np.ndarray:
    """A random context.

    Args:
        kind: `dense`, each column a softmax of normal logits, or `one_hot`,
            each column nearly all on one token, another one for each.
        length: n.
        seed: Decides it.

    Returns:
        float64 array `[n, n]`, each column sums to 1.
    """
    rng = np.random.default_rng(seed)
    if kind == "dense":
        context = np.exp(_SCALE * rng.standard_normal((length, length)))
    else:
        context = np.full((length, length), _ELSEWHERE / length)
        context[rng.permutation(length), np.arange(length)] += 1 - _ELSEWHERE
    return context / context.sum(0)


def divergence(context: np.ndarray, scores: np.ndarray) -> float:
    """The Kullback-Leibler divergence of scores from a context.

    Args:
        context, scores: arrays `[n, n]`, each column sums to 1.

    Returns:
        The mean over columns, nats.
    """
    # float32 may have made 0 of a score.
    scores = np.maximum(scores, np.finfo("float32").tiny)
    return float((context * np.log(context / scores)).sum(0).mean())


def fit(
    cell: Cell,
    scale: Scale,
    seed: int,
    should_stop: Callable[[], bool],
    report: Callable[[int], None],
) -> dict | None:
    """Fits heads of each size to one context.

    Args:
        cell: Which kind of context.
        scale: Its length, and the updates of a head.
        seed: Decides the context and the initial projections.
        should_stop: Whether to leave, asked after each head.
        report: Takes the number of updates made of all heads.

    Returns:
        None where `should_stop` said so. Else for each size H `kl_H`, the
        divergence that is reached, nats; `log_error_H`, the root of the
        summed squares of what the centred logits miss, relative to all of
        them; `bound_H`, what they miss at least (`theory.lowest_error`); and
        `seconds`.
    """
    started = time.monotonic()
    context = draw_context(cell.contexts, scale.context_length, seed)
    log = np.log(context)
    whole = np.linalg.norm(log - log.mean(0))
    figures = {}
    for number, size in enumerate(scale.context_head_sizes, start=1):
        found = fit_context(context, size, steps=scale.context_steps, seed=seed)
        figures[f"kl_{size}"] = divergence(context, found.scores)
        figures[f"log_error_{size}"] = float(found.log_error / whole)
        figures[f"bound_{size}"] = float(lowest_error(context, size) / whole)
        report(number * scale.context_steps)
        if should_stop():
            return None
    return {**figures, "seconds": time.monotonic() - started}
