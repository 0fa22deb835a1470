"""Metrics of a ranking, computed by `ir-measures`, and of embeddings.

Shape letters: Q queries, K documents ranked, N texts, D and E embedding sizes
of a student and its teacher.

`ir-measures` is installed by `pip install keras_fixedhead[retrieval]`.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from keras_fixedhead.retrieval import import_extra


def measure_queries(
    documents: np.ndarray,
    relevant: Sequence[Collection[int] | Mapping[int, float]],
    figures: Collection[str],
) -> dict[str, np.ndarray]:
    """Measures the ranking of each query; returns a float array `[Q]` a metric.

    Takes an int array `[Q, K]` of document numbers, best first, -1 where fewer
    than K were found; for each query its relevant documents, at least one, or
    a dictionary of their scores, which are over 0; and names of `ir-measures`,
    such as `"R@10"`, `"RR@10"`, `"AP"` and `"nDCG@10"` (linear gains). K is at
    least every cutoff, unless there are fewer documents.
    """
    ir_measures = import_extra("ir_measures")
    if len(documents) != len(relevant) or not all(map(len, relevant)):
        raise ValueError(
            "`relevant` must name at least one document for each row of "
            f"`documents`. Received: {len(documents)} rows, {len(relevant)} "
            f"queries, {sum(not len(r) for r in relevant)} of them with none"
        )
    names = {ir_measures.parse_measure(name): name for name in figures}
    judgements = {}
    for query, row in enumerate(relevant):
        scores = row if isinstance(row, dict) else dict.fromkeys(row, 1)
        judgements[str(query)] = {str(name): scores[name] for name in scores}
    # Ranks as scores: ir-measures would reorder equal scores.
    run = {
        str(query): {str(document): -rank for rank, document in enumerate(row)}
        for query, row in enumerate(documents)
    }
    values = {name: np.zeros(len(documents)) for name in figures}
    for found in ir_measures.iter_calc(list(names), judgements, run):
        values[names[found.measure]][int(found.query_id)] = found.value
    return values


def measure_rankings(
    documents: np.ndarray,
    relevant: Sequence[Collection[int] | Mapping[int, float]],
    figures: Collection[str],
) -> dict[str, float]:
    """The means of `measure_queries` over the queries, such as MAP for AP."""
    values = measure_queries(documents, relevant, figures)
    return {name: float(each.mean()) for name, each in values.items()}


def shared_neighbours(
    embeddings: np.ndarray, teacher: np.ndarray, count: int
) -> float:
    """The fraction of nearest texts that a student and its teacher share.

    Embeddings, `[N, D]` and `[N, E]`, have unit length; `count` texts, or all
    others if there are fewer, are the nearest ones of each.
    """
    count = min(count, len(embeddings) - 1)
    nearest = []
    for vectors in (embeddings, teacher):
        scores = vectors @ vectors.T
        np.fill_diagonal(scores, -np.inf)
        nearest.append(np.argsort(-scores, axis=1, kind="stable")[:, :count])
    shared = [
        len(np.intersect1d(ours, theirs)) for ours, theirs in zip(*nearest)
    ]
    return float(np.mean(shared)) / count
