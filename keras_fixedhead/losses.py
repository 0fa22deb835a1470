"""Losses: in-batch contrastive learning of a dual encoder, distillation.

Shape letters: M pairs or texts of this replica, C candidates (those of all
replicas), H hard negatives of all replicas, D embedding size, K kinds of keys,
T sequence length, W total width of all heads.
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
    negatives=None,
    excluded_negatives=None,
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
        negatives: Float tensor `[H, D]` or `None`, further documents of all
            replicas, which are nobody's answer.
        excluded_negatives: Bool tensor `[M, H]`, which of them are not to
            count as wrong.

    Returns:
        Float tensor `[M]`, the loss of each pair in nats, float32 at least.
    """
    not_documents = excluded
    if negatives is not None:
        candidate_documents = ops.concatenate([candidate_documents, negatives])
        not_documents = ops.concatenate([excluded, excluded_negatives], axis=1)
    forward = contrastive_loss(
        queries, candidate_documents, labels, temperature, not_documents
    )
    backward = contrastive_loss(
        documents, candidate_queries, labels, temperature, excluded
    )
    return (forward + backward) / 2


def similarity_loss(
    embeddings, candidates, teacher, teacher_candidates, labels, temperature
):
    """How far similarities to the others of the batch are from a teacher's.

    The divergence of the softmax of a text's similarities from that of the
    teacher's; what a text has with itself is left out. As in SEED (Fang et
    al. 2021, "SEED: Self-supervised Distillation for Visual Representation",
    https://arxiv.org/abs/2101.04731), with the batch for its queue.

    Args:
        embeddings: float tensor `[M, D]`, of unit length.
        candidates: float tensor `[C, D]`, those of the whole batch.
        teacher: float tensor `[M, D_teacher]`, of unit length.
        teacher_candidates: float tensor `[C, D_teacher]`.
        labels: integer tensor `[M]`, where among the candidates each of this
            replica's texts is.
        temperature: positive float that divides similarities.

    Returns:
        Float tensor `[M]`, nats, float32 at least.
    """
    is_self = ops.equal(
        ops.expand_dims(labels, 1),
        ops.arange(ops.shape(candidates)[0], dtype=labels.dtype),
    )  # [M, C]

    def log_softmax(rows, columns):
        scores = ops.matmul(rows, ops.transpose(columns))
        dtype = keras.backend.result_type(scores.dtype, "float32")
        logits = ops.cast(scores, dtype) / ops.cast(temperature, dtype)
        return ops.log_softmax(ops.where(is_self, _EXCLUDED, logits))

    return _divergence(
        log_softmax(teacher, teacher_candidates),
        log_softmax(embeddings, candidates),
    )


def relation_loss(projection, teacher, padding_mask, num_heads):
    """How far attention relations are from a teacher's.

    The relation of queries (or keys, or values) is the softmax of their
    scaled products with each other. Heads are those of the relation, so the
    two models may differ in theirs (Wang et al. 2021, "MiniLMv2", section
    3.1, https://arxiv.org/abs/2012.15828).

    Args:
        projection: float tensor `[M, T, W]`, the queries, keys or values of
            all heads side by side.
        teacher: float tensor `[M, T, W_teacher]`.
        padding_mask: bool or int tensor `[M, T]`, 1 = real token.
        num_heads: int, divides W and W_teacher.

    Returns:
        Float tensor `[M]`, the mean over heads and real tokens of the
        divergence from the teacher's relation, nats, float32 at least.
    """
    mask = ops.cast(padding_mask, "bool")

    def log_relation(x):
        batch, length = ops.shape(x)[:2]
        size = x.shape[-1] // num_heads
        x = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
        x = ops.reshape(x, (batch, length, num_heads, size))
        logits = ops.einsum("btnh,bsnh->bnts", x, x) / size**0.5
        return ops.log_softmax(
            ops.where(mask[:, None, None, :], logits, _EXCLUDED)
        )

    # [M, N, T] -> [M, T]
    divergence = ops.mean(
        _divergence(log_relation(teacher), log_relation(projection)), axis=1
    )
    weights = ops.cast(mask, divergence.dtype)
    return ops.sum(divergence * weights, axis=1) / ops.maximum(
        ops.sum(weights, axis=1), 1.0
    )


def _divergence(log_target, log_prediction):
    """Kullback-Leibler divergence along the last axis."""
    log_prediction = ops.cast(log_prediction, log_target.dtype)
    return ops.sum(ops.exp(log_target) * (log_target - log_prediction), axis=-1)
