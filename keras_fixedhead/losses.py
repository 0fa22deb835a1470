"""Losses: in-batch contrastive learning of a dual encoder, distillation.

Shape letters: M pairs or texts of this replica, C candidates (those of all
replicas), H hard negatives of all replicas, D embedding size, K kinds of keys,
P tokens, B sequences of N heads, T queries and S keys.
"""

from keras import ops

from keras_fixedhead.layer_config import Tensor, at_least_float32

# Below, scores are masked or count for nothing.
_LEAST_SCORE = 1e-7
# Large enough to vanish in a softmax, small enough for every float32 sum.
_EXCLUDED = -1e9


def same_keys(keys: Tensor, candidate_keys: Tensor) -> Tensor:
    """Duplicates of pairs among candidates, bool `[M, C]`: any key is equal.

    Int keys are `[M, K]` and `[C, K]`, such as one of the query and one of
    the document.
    """
    # [M, 1, K] == [1, C, K]
    return ops.any(keys[:, None, :] == candidate_keys[None, :, :], axis=-1)


def contrastive_loss(
    embeddings: Tensor,
    candidates: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    excluded: Tensor,
) -> Tensor:
    """InfoNCE with in-batch negatives, `[M]` in nats, float32 at least.

    The cross entropy of each pair's other half among the candidates of every
    replica (van den Oord et al. 2018, eq. 4; CLIP, Radford et al. 2021).

    Takes `embeddings` `[M, D]`, `candidates` `[C, D]`, the int `labels` `[M]`
    of the true candidates, a `temperature` that divides the scores, and bool
    `excluded` `[M, C]`, candidates not to count as wrong, such as duplicates.
    """
    logits = _float_logits(embeddings, candidates, temperature)
    is_label = _is_label(labels, candidates)
    excluded = ops.logical_and(excluded, ops.logical_not(is_label))
    logits = ops.where(excluded, _EXCLUDED, logits)
    positive = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
    return ops.logsumexp(logits, axis=-1) - positive


def symmetric_contrastive_loss(
    queries: Tensor,
    documents: Tensor,
    candidate_queries: Tensor,
    candidate_documents: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    excluded: Tensor,
    negatives: Tensor | None = None,
    excluded_negatives: Tensor | None = None,
) -> Tensor:
    """Mean of `contrastive_loss` in both directions, for each pair `[M]`.

    `queries` and `documents` are this replica's. `excluded` `[M, C]` applies to
    both directions. `negatives` `[H, D]` are further documents of all replicas
    that answer no query; `excluded_negatives` `[M, H]` do not count as wrong.
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
    embeddings: Tensor,
    candidates: Tensor,
    teacher: Tensor,
    teacher_candidates: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
) -> Tensor:
    """Divergence of similarities from a teacher's, `[M]`, float32 at least.

    Compares the softmax of a text's similarities to the other texts of the
    batch with that of the teacher, in nats, as SEED does (Fang et al. 2021,
    https://arxiv.org/abs/2101.04731). The arguments are those of
    `contrastive_loss`, for unit-length embeddings of the model and the teacher.
    """
    is_self = _is_label(labels, candidates)

    def log_softmax(rows, columns):
        logits = _float_logits(rows, columns, temperature)
        return ops.log_softmax(ops.where(is_self, _EXCLUDED, logits))

    target = log_softmax(teacher, teacher_candidates)
    found = ops.cast(log_softmax(embeddings, candidates), target.dtype)
    # The Kullback-Leibler divergence.
    return ops.sum(ops.exp(target) * (target - found), axis=-1)


def state_loss(state: Tensor, teacher: Tensor) -> Tensor:
    """Squared error relative to the teacher's square, `[P]`, of P tokens.

    Takes states `[P, D]`; float32 at least. As in TinyBERT (Jiao et al. 2020,
    https://arxiv.org/abs/1909.10351, eq. 8), but free of scale.
    """
    state, teacher = at_least_float32(state), at_least_float32(teacher)
    errors = ops.sum(ops.square(state - teacher), axis=-1)
    return errors / ops.sum(ops.square(teacher), axis=-1)


def attention_loss(scores: Tensor, teacher: Tensor) -> Tensor:
    """Divergence of attention scores from a teacher's, head by head, `[B, T]`.

    Takes scores `[B, N, T, S]` of the same N heads. The Kullback-Leibler
    divergence in nats, the mean of all heads, float32 at least, as in MiniLM
    (Wang et al. 2020, https://arxiv.org/abs/2002.10957, section 3.1).
    """
    scores, teacher = at_least_float32(scores), at_least_float32(teacher)
    logs = [ops.log(ops.maximum(x, _LEAST_SCORE)) for x in (teacher, scores)]
    return ops.mean(ops.sum(teacher * (logs[0] - logs[1]), axis=-1), axis=1)


def _float_logits(rows, columns, temperature):
    # A sum of exponentials needs more precision than bfloat16.
    scores = at_least_float32(ops.matmul(rows, ops.transpose(columns)))
    return scores / ops.cast(temperature, scores.dtype)


def _is_label(labels, candidates):
    return ops.one_hot(labels, ops.shape(candidates)[0], dtype="bool")
