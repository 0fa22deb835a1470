"""Figures of merit of a ranking, computed by `ir-measures`.

Shape letters: Q queries, K documents ranked.

The package behind it comes with `pip install keras_fixedhead[retrieval]`.
"""

import numpy as np


def measure_queries(documents, relevant, figures):
    """Measures the ranking of each query.

    Args:
        documents: int array `[Q, K]` of document numbers, best first; -1
            where fewer than K were found.
        relevant: for each of the Q queries the numbers of its relevant
            documents, or a dictionary of their scores, which are over 0.
        figures: strings, names of `ir-measures`: `"R@k"`, the share of the
            relevant documents among the first k; `"RR@k"`, the reciprocal
            rank of the first relevant one, 0 after k; `"AP"`, the precision
            at the rank of each relevant document, averaged over them, 0 for
            those not ranked; `"nDCG@k"`, the sum of score / log2(rank + 1)
            divided by that of the best ranking (Järvelin and Kekäläinen
            2002, "Cumulated gain-based evaluation of IR techniques"). K is
            at least every k, unless there are fewer documents than that.

    Returns:
        A dictionary from each figure to a float array `[Q]`.

    Raises:
        ImportError: ir-measures is not installed.
        ValueError: there is no such figure, a query has no relevant
            document, or the arguments are of different numbers of queries.
    """
    try:
        import ir_measures
    except ImportError as error:
        raise ImportError(
            "keras_fixedhead.metrics needs ir-measures: "
            "pip install keras_fixedhead[retrieval]"
        ) from error

    if len(documents) != len(relevant) or not all(map(len, relevant)):
        raise ValueError(
            "`relevant` must name at least one document for each row of "
            f"`documents`. Received: {len(documents)} rows, {len(relevant)} "
            f"queries, {sum(not len(r) for r in relevant)} of them with none"
        )
    try:
        names = {ir_measures.parse_measure(name): name for name in figures}
    except (NameError, ValueError) as error:
        raise ValueError(
            "`figures` must be names of ir-measures. "
            f"Received: {list(figures)}: {error}"
        ) from error
    judgements = {
        str(query): {
            str(document): score
            for document, score in (
                row if isinstance(row, dict) else dict.fromkeys(row, 1)
            ).items()
        }
        for query, row in enumerate(relevant)
    }
    # Ranks as scores: where two scores are equal the library would choose an
    # order of its own.
    run = {
        str(query): {str(document): -rank for rank, document in enumerate(row)}
        for query, row in enumerate(documents)
    }
    values = {name: np.zeros(len(documents)) for name in figures}
    for found in ir_measures.iter_calc(list(names), judgements, run):
        values[names[found.measure]][int(found.query_id)] = found.value
    return values


def measure(documents, relevant, figures):
    """Measures rankings; what `measure_queries` gives, averaged.

    The mean of `"AP"` is called MAP, that of `"RR"` MRR.

    Args:
        documents: as in `measure_queries`.
        relevant: as in `measure_queries`.
        figures: as in `measure_queries`.

    Returns:
        A dictionary from each figure to a float, the mean over the queries.

    Raises:
        ImportError: ir-measures is not installed.
        ValueError: as `measure_queries`.
    """
    values = measure_queries(documents, relevant, figures)
    return {name: float(each.mean()) for name, each in values.items()}
