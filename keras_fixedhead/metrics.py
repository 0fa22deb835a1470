"""Figures of merit of a ranking, computed by `ir-measures`.

Shape letters: Q queries, K documents ranked.

The package behind it comes with `pip install keras_fixedhead[retrieval]`.
"""


def recall_at_k(documents, relevant, k):
    """The share of the relevant documents among the first `k`.

    Args:
        documents: int array `[Q, K]` of document numbers, best first; -1
            where fewer than K were found. K is at least `k`, unless there
            are fewer documents than that.
        relevant: For each of the Q queries the numbers of its relevant
            documents, or a dictionary of their scores, which are over 0.
        k: int, how many of the ranked documents count.

    Returns:
        float, the mean over the queries.

    Raises:
        ImportError: ir-measures is not installed.
        ValueError: A query has no relevant document, or the arguments are of
            different numbers of queries.
    """
    return _mean("R", documents, relevant, k)


def mrr_at_k(documents, relevant, k):
    """The mean reciprocal rank of the first relevant document.

    Args:
        documents: int array `[Q, K]`, as in `recall_at_k`.
        relevant: As in `recall_at_k`.
        k: int, the rank after which a document counts 0.

    Returns:
        float, the mean over the queries.

    Raises:
        ImportError: ir-measures is not installed.
        ValueError: A query has no relevant document, or the arguments are of
            different numbers of queries.
    """
    return _mean("RR", documents, relevant, k)


def ndcg_at_k(documents, relevant, k):
    """The normalized discounted cumulative gain of the first `k`.

    A relevant document at rank r gains its score / log2(r + 1); the sum is
    divided by that of the best ranking (Järvelin and Kekäläinen 2002,
    "Cumulated gain-based evaluation of IR techniques").

    Args:
        documents: int array `[Q, K]`, as in `recall_at_k`.
        relevant: As in `recall_at_k`; scores are gains.
        k: int, how many of the ranked documents count.

    Returns:
        float, the mean over the queries.

    Raises:
        ImportError: ir-measures is not installed.
        ValueError: A query has no relevant document, or the arguments are of
            different numbers of queries.
    """
    return _mean("nDCG", documents, relevant, k)


def _mean(measure, documents, relevant, k):
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
    figure = ir_measures.parse_measure(f"{measure}@{k}")
    return ir_measures.calc_aggregate([figure], judgements, run)[figure]
