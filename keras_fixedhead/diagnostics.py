"""What the attention heads of a model do on some texts.

Shape letters: B batch, T sequence length, N heads, H head size, W total width
of all heads.
"""

import dataclasses

import numpy as np
from keras import ops

from keras_fixedhead.backbone import backbone_of, input_batches


@dataclasses.dataclass(frozen=True)
class HeadReport:
    """What one head does, mean values over the sequences.

    Attributes:
        layer: int. The number of the block, from 0.
        head: int. The number of the head in it, from 0.
        head_size: int.
        mean_length: float. The real tokens of a sequence.
        longest_length: int. Those of the longest.
        bottleneck: bool. Whether the head is smaller than the longest
            sequence, and so cannot represent every attention pattern of it
            (Theorem 1 of https://arxiv.org/abs/2002.07028).
        logit_rank: float. The numerical rank of the logits `[T, T]`, at most
            `min(head_size, T)`.
        logit_effective_rank: float. Their effective rank: the exponential
            of the entropy of the singular values, divided by their sum (Roy
            & Vetterli 2007, "The effective rank: a measure of effective
            dimensionality").
        attention_rank: float. The numerical rank of the attention scores
            `[T, T]`, which the softmax makes larger.
        attention_effective_rank: float. Their effective rank.
        entropy: float, nats. The entropy of a row of the scores, 0 where a
            token attends to one token, `log(T)` where to all alike.
    """

    layer: int
    head: int
    head_size: int
    mean_length: float
    longest_length: int
    bottleneck: bool
    logit_rank: float
    logit_effective_rank: float
    attention_rank: float
    attention_effective_rank: float
    entropy: float


# In the order of what `_figures` returns.
_FIGURES = (
    "logit_rank",
    "logit_effective_rank",
    "attention_rank",
    "attention_effective_rank",
    "entropy",
)


@dataclasses.dataclass(frozen=True)
class AttentionReport:
    """What the heads of a model do. As a string, a table of its layers.

    Attributes:
        heads: tuple of `HeadReport`, by layer and head.
        sequences: int. The sequences of which values are means.
    """

    heads: tuple[HeadReport, ...]
    sequences: int

    def rows(self):
        """The reports of the heads as a list of dictionaries."""
        return [dataclasses.asdict(head) for head in self.heads]

    def __str__(self):
        first = self.heads[0]
        lines = [
            f"{self.sequences} sequences of {first.mean_length:.1f} tokens, "
            f"the longest of {first.longest_length}; means over heads",
            "layer  heads  head size  bottleneck  logit rank (effective)  "
            "attention rank (effective)  entropy",
        ]
        for layer in sorted({head.layer for head in self.heads}):
            heads = [head for head in self.heads if head.layer == layer]
            sizes = sorted({head.head_size for head in heads})
            size = "-".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
            mean = {
                name: np.mean([getattr(head, name) for head in heads])
                for name in _FIGURES
            }
            bottleneck = "yes" if any(h.bottleneck for h in heads) else "no"
            lines.append(
                f"{layer:>5}  {len(heads):>5}  {size:>9}  {bottleneck:>10}  "
                f"{mean['logit_rank']:>10.1f} "
                f"{_parenthesis(mean['logit_effective_rank']):>11}  "
                f"{mean['attention_rank']:>14.1f} "
                f"{_parenthesis(mean['attention_effective_rank']):>11}  "
                f"{mean['entropy']:>7.2f}"
            )
        return "\n".join(lines)


def attention_report(model, inputs, batch_size=32):
    """Ranks and entropies of a model's attention, head by head.

    A head of size H has logits `Q K^T / sqrt(H)` of rank H at most, hence
    cannot make every attention pattern of more than H tokens (Bhojanapalli
    et al. 2020, Theorem 1, https://arxiv.org/abs/2002.07028). This says how
    much of that rank the heads use. Logits are without the window, scores
    with it. Padding is left out of every figure, and so are sequences
    without a real token.

    Queries and keys are the layers' own, in the compute dtype; the rest is
    float64. A singular value counts to the rank above the largest times T
    times float32's epsilon.

    The singular values of two matrices `[T, T]` for each head and sequence
    are computed, in O(T^3): tens of texts say enough.

    Args:
        model: a `FixedHeadBackbone`, or a task that holds one.
        inputs: the backbone's inputs, a dictionary of int arrays `[B, T]`;
            of a `FixedHeadTextEmbedder` with a preprocessor also a string or
            a list of B strings.
        batch_size: int. How many rows are computed at once.

    Returns:
        An `AttentionReport`.

    Raises:
        ValueError: if `model` holds no `FixedHeadBackbone`, or `inputs` lacks
            one, has no real token, or is text that the model cannot take.
    """
    backbone = backbone_of(model)
    lengths, figures = [], [[] for _ in backbone.transformer_layers]
    for batch, real in input_batches(_tokenize(model, inputs), batch_size):
        lengths.extend(real.sum(1)[real.any(1)])
        for i, (attention, x) in enumerate(_attention_inputs(backbone, batch)):
            figures[i].extend(_sequence_figures(attention, x, real))
    heads = []
    for i, layer in enumerate(backbone.transformer_layers):
        means = np.mean(figures[i], axis=0)  # [N, figures]
        for head, size in enumerate(layer.attention.head_sizes):
            heads.append(
                HeadReport(
                    layer=i,
                    head=head,
                    head_size=size,
                    mean_length=float(np.mean(lengths)),
                    longest_length=int(max(lengths)),
                    bottleneck=bool(size < max(lengths)),
                    **dict(zip(_FIGURES, map(float, means[head]))),
                )
            )
    return AttentionReport(tuple(heads), len(lengths))


def _tokenize(model, inputs):
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, (list, tuple)):
        return inputs
    preprocessor = getattr(model, "preprocessor", None)
    batch = None if preprocessor is None else preprocessor(list(texts))
    # That of a masked language model would return labels, too.
    if not isinstance(batch, dict):
        raise ValueError(
            "Texts need a FixedHeadTextEmbedder with a preprocessor. Pass "
            "token_ids, segment_ids and padding_mask instead. Received: "
            f"texts, and a {type(model).__name__} with "
            f"preprocessor={preprocessor!r}"
        )
    return batch


def _attention_inputs(backbone, batch):
    """Yields each attention layer and its input `[B, T, D]`."""
    tokens = backbone.token_embedding(batch["token_ids"])
    positions = backbone.position_embedding(tokens)
    segments = backbone.segment_embedding(batch["segment_ids"])
    x = backbone.embeddings_add((tokens, positions, segments))
    x = backbone.embeddings_layer_norm(x)
    for layer in backbone.transformer_layers:
        yield layer.attention, x
        x = layer(x, padding_mask=batch["padding_mask"], training=False)


def _sequence_figures(attention, x, real):
    """Yields the figures `[N, figures]` of each sequence with a real token.

    Args:
        attention: a built `FixedMultiHeadAttention`, self-attention.
        x: its input, a float tensor `[B, T, D]`.
        real: bool array `[B, T]`, where the real tokens are.
    """
    # [B, T, W]
    queries, keys = (
        ops.convert_to_numpy(projection(x)).astype("float64")
        for projection in (attention.query, attention.key)
    )
    ends = np.cumsum(attention.head_sizes)[:-1]
    for query, key, places in zip(queries, keys, map(np.flatnonzero, real)):
        if not len(places):
            continue
        logits = np.stack(
            [
                q @ k.T / np.sqrt(q.shape[-1])  # [T, H] x [H, T]
                for q, k in zip(
                    np.split(query[places], ends, axis=-1),
                    np.split(key[places], ends, axis=-1),
                )
            ]
        )
        allowed = np.ones(logits.shape[1:], bool)
        if attention.attention_window is not None:
            distance = abs(places[:, None] - places)
            allowed = distance < attention.attention_window
        yield _figures(logits, allowed)


def _figures(logits, allowed):
    """Ranks and entropies `[N, figures]` of logits `[N, T, T]`."""
    scores = np.where(allowed, logits, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores = scores / scores.sum(-1, keepdims=True)
    entropy = _entropy(scores).mean(-1)
    return np.stack([*_ranks(logits), *_ranks(scores), entropy], axis=-1)


def _ranks(matrices):
    """Numerical and effective ranks `[N]` of matrices `[N, T, T]`."""
    values = np.linalg.svd(matrices, compute_uv=False)  # [N, T]
    epsilon = np.finfo("float32").eps
    largest = values.max(-1, keepdims=True)
    ranks = (values > largest * matrices.shape[-1] * epsilon).sum(-1)
    total = values.sum(-1, keepdims=True)
    shares = values / np.where(total > 0, total, 1.0)
    # All zero, it has rank 0.
    return ranks, np.where(ranks > 0, np.exp(_entropy(shares)), 0.0)


def _entropy(shares):
    """The entropy of the last axis, nats; 0 log 0 is 0."""
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(-1)


def _parenthesis(number):
    return f"({number:.1f})"
