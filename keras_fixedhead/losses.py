"""Losses: in-batch contrastive learning of a dual encoder.

Shape letters: M pairs of this replica, C candidates (the pairs of all
replicas), D embedding size, K kinds of keys.
"""

import keras
from keras import ops

# Large enough to vanish in a softmax, small enough for every float32 sum.
_EXCLUDED = -1e9


def same_keys(keys, candidate_keys):
    """Which candidates are duplicates of which pairs.

    Args:
        keys: Integer tensor `[M, K]`, K identities of each pair, such as one
            of its query and one of its document.
        candidate_keys: Integer tensor `[C, K]`.

    Returns:
        Bool tensor `[M, C]`, true where any of the K identities is the same.
    """
    # [M, 1, K] == [1, C, K]
    equal = ops.equal(keys[:, None, :], candidate_keys[None, :, :])
    return ops.any(equal, axis=-1)


def contrastive_loss(embeddings, candidates, labels, temperature, excluded):
    """Cross entropy of finding each pair's other half among candidates.

    InfoNCE with in-batch negatives (van den Oord et al. 2018, eq. 4; with
    candidates from every replica as in CLIP, Radford et al. 2021).

    Args:
        embeddings: Float tensor `[M, D]`, of unit length where scores are to
            be cosines.
        candidates: Float tensor `[C, D]`, the other side of all pairs.
        labels: Integer tensor `[M]`, the candidate that is the true one.
        temperature: Positive float or scalar tensor that divides the scores.
        excluded: Bool tensor `[M, C]`, candidates that are not to count as
            wrong, such as duplicates. The true one counts whatever it says.

    Returns:
        Float tensor `[M]`, the loss of each pair in nats, float32 at least.
    """
    scores = ops.matmul(embeddings, ops.transpose(candidates))  # [M, C]
    # A sum of exponentials needs more than bfloat16.
    dtype = keras.backend.result_type(scores.dtype, "float32")
    logits = ops.cast(scores, dtype) / ops.cast(temperature, dtype)
    is_label = ops.equal(
        ops.expand_dims(labels, 1),
        ops.arange(ops.shape(candidates)[0], dtype=labels.dtype),
    )  # [M, C]
    excluded = ops.logical_and(excluded, ops.logical_not(is_label))
    logits = ops.where(excluded, _EXCLUDED, logits)
    positive = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
    return ops.logsumexp(logits, axis=-1) - positive


def symmetric_contrastive_loss(
    queries,
    documents,
    candidate_queries,
    candidate_documents,
    labels,
    temperature,
    excluded,
):
    """Mean of the losses query to document and document to query.

    Args:
        queries: Float tensor `[M, D]`.
        documents: Float tensor `[M, D]`, row i belongs to query i.
        candidate_queries: Float tensor `[C, D]`, the queries of all replicas.
        candidate_documents: Float tensor `[C, D]`, in the same order.
        labels: Integer tensor `[M]`, where among the candidates each of this
            replica's pairs is.
        temperature: Positive float or scalar tensor.
        excluded: Bool tensor `[M, C]` as in `contrastive_loss`, for both
            directions.

    Returns:
        Float tensor `[M]`, the loss of each pair in nats, float32 at least.
    """
    forward = contrastive_loss(
        queries, candidate_documents, labels, temperature, excluded
    )
    backward = contrastive_loss(
        documents, candidate_queries, labels, temperature, excluded
    )
    return (forward + backward) / 2
