"""The attention of a live model, measured head by head.

Shape letters: B batch, T query length, S key length, N heads, H head size.
"""

from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
import rich.progress
import threadpoolctl
from keras import ops, tree

from keras_fixedhead.attention_checks import positive_int
from keras_fixedhead.diagnostics.attention_calls import (
    Heads,
    attention_layers,
    plain_layers,
    recorded_calls,
)
from keras_fixedhead.diagnostics.report import (
    METRICS,
    AttentionReport,
    HeadReport,
    LayerReport,
)

# Singular values below this, times the largest and the longer side, are
# rounding noise: queries and keys come from float32.
_EPSILON = np.finfo("float32").eps


def attention_report(
    model: keras.Model, inputs: Any, batch_size: int = 32, verbose: bool = False
) -> AttentionReport:
    """Ranks, entropies and conditioning of a model's attention, head by head.

    The logits of a head of size H have rank H at most, so it cannot make every
    attention pattern of more than H tokens (Theorem 1 of
    https://arxiv.org/abs/2002.07028). The report shows how much of that rank
    the heads use. Logits are without masks, scores with them. Padding and
    sequences without a real token do not count.

    The model runs without dropout and does not change. The report computes
    queries, keys and values from the inputs of each attention layer, in the
    compute dtype, and the rest in float64. A singular value counts towards
    the rank above the largest times the longer side times float32's epsilon.
    Figures of a layer that are not finite are NaN.

    The cost grows with the cube of the length: tens of sequences are enough.

    Args:
        model: a built Keras model whose attention layers are
            `FixedMultiHeadAttention` or Keras's or KerasHub's plain
            `MultiHeadAttention`, such as a `FixedHeadBackbone`, a KerasHub
            BERT, or a KerasHub task with one as its `backbone`. The report
            names attention layers of other kinds in `left_out`.
        inputs: the model's inputs (a task's backbone's), arrays `[B, ...]` in
            the structure that the model takes; for a task whose preprocessor
            returns those, also a string or a list of strings.
        batch_size: int. How many rows are computed at once.
        verbose: bool. Whether to show a progress bar.

    Returns:
        An `AttentionReport`.

    Raises:
        ValueError: if `model` is not built or computes no such attention, or
            `inputs` lacks one, has no real token, or is text that the model
            cannot take.
    """
    return AttentionProbe(model, inputs, batch_size).report(verbose)


class AttentionProbe:
    """Reports on the same inputs again and again, as a model learns.

    For the arguments see `attention_report`.
    """

    def __init__(
        self, model: keras.Model, inputs: Any, batch_size: int = 32
    ) -> None:
        inputs = _tokenize(model, inputs)
        whole = model
        if isinstance(model, keras_hub.models.Task):
            model = model.backbone
        if not isinstance(model, keras.Model) or not model.built:
            raise ValueError(
                "`model` must be a built Keras model: call it once, or its "
                f"`build`. Received: model={model!r}"
            )
        self._model = model
        self._layers = attention_layers(whole)
        self._plain = plain_layers(whole)
        self._inputs = _arrays(model, inputs)
        self._rows = len(tree.flatten(self._inputs)[0])
        batch_size = positive_int("batch_size", batch_size)
        self._batch_size = min(batch_size, self._rows)

    def report(self, verbose: bool = False) -> AttentionReport:
        """Reports on the model as it is now."""
        # By the number of the call: layer, figures of sequences.
        found: dict[int, tuple[keras.layers.Layer, list]] = {}
        # Several threads hinder each other on matrices so small.
        with threadpoolctl.threadpool_limits(1, "blas"):
            for start in rich.progress.track(
                range(0, self._rows, self._batch_size),
                "Attention",
                transient=True,
                disable=not verbose,
            ):
                rows = min(self._batch_size, self._rows - start)
                for number, call in enumerate(self._calls(start)):
                    _, sequences = found.setdefault(number, (call.layer, []))
                    sequences.extend(_sequences(call, rows))
        seen = {id(layer) for layer, _ in found.values()}
        left_out = tuple(
            # A layer that was never called has no path yet.
            layer.path or layer.name
            for layer in self._layers
            if id(layer) not in seen
        )
        if not found:
            raise ValueError(
                "`model` must compute attention with FixedMultiHeadAttention, "
                "keras.layers.MultiHeadAttention or KerasHub's encoders. "
                f"Received: {self._model!r}, without any; left out: "
                f"{', '.join(left_out) or 'nothing'}"
            )
        heads: list[HeadReport] = []
        layers: list[LayerReport] = []
        for number, (layer, sequences) in found.items():
            if not sequences:
                raise ValueError(
                    "`inputs` must hold a real token, which attention may "
                    f"see. Received: {self._rows} rows without, at "
                    f"{layer.path}"
                )
            lengths, figures, conditions = zip(*sequences)
            heads.extend(_head_reports(number, layer, lengths, figures))
            layers.append(
                LayerReport(
                    layer=number,
                    name=layer.path,
                    num_heads=layer.num_heads,
                    condition_number=float(np.median(conditions)),
                )
            )
        return AttentionReport(
            tuple(heads),
            tuple(layers),
            max(len(sequences) for _, sequences in found.values()),
            left_out,
        )

    def _calls(self, start):
        """The calls of attention layers on a batch."""
        # The last batch continues with the first row: one size compiles once.
        rows = np.arange(start, start + self._batch_size) % self._rows
        batch = tree.map_structure(
            lambda x: ops.convert_to_tensor(x[rows]), self._inputs
        )
        with recorded_calls(self._plain) as calls:
            self._model(batch, training=False)
        return calls


def _tokenize(model, inputs):
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, (list, tuple)) or not all(
        isinstance(text, str) for text in texts
    ):
        return inputs
    preprocessor = getattr(model, "preprocessor", None)
    batch = None if preprocessor is None else preprocessor(list(texts))
    # That of a masked language model returns labels, too.
    if not isinstance(batch, dict):
        raise ValueError(
            "Texts need a task whose preprocessor makes the backbone's inputs "
            "of them, such as a FixedHeadTextEmbedder. Pass those inputs "
            f"instead. Received: texts, and a {type(model).__name__} with "
            f"preprocessor={preprocessor!r}"
        )
    return batch


def _arrays(model, inputs):
    """Inputs as NumPy arrays; of a dictionary, those that the model takes."""
    try:
        expected = model.input
    except (AttributeError, ValueError):
        expected = None  # a subclass that was never called symbolically
    if isinstance(expected, dict):
        if not isinstance(inputs, dict) or not expected.keys() <= inputs.keys():
            received = sorted(inputs) if isinstance(inputs, dict) else inputs
            raise ValueError(
                "`inputs` must be a dictionary with "
                f"{', '.join(expected)}. Received: {received!r}"
            )
        inputs = {name: inputs[name] for name in expected}
    if any(x is None for x in tree.flatten(inputs)):
        raise ValueError(
            "`inputs` must hold arrays, for optional inputs too. "
            f"Received: None in {tree.map_structure(type, inputs)!r}"
        )
    arrays = tree.map_structure(
        lambda x: ops.convert_to_numpy(ops.convert_to_tensor(x)), inputs
    )
    sizes = {x.shape[0] if x.ndim else 0 for x in tree.flatten(arrays)}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(
            "`inputs` must be arrays with the same number of rows, at least "
            f"one. Received: {tree.map_structure(lambda x: x.shape, arrays)!r}"
        )
    return arrays


def _sequences(call, rows):
    """Yields the length, the heads' figures and the condition number.

    One for each of the first `rows` sequences that has a real token.
    """
    heads = Heads.of(call.layer)
    made = [
        _split(projection(x), sizes)
        for projection, x, sizes in zip(
            heads.projections,
            (call.query, call.key, call.value),
            (heads.sizes, heads.sizes, heads.value_sizes),
        )
    ]
    # A layer may normalize one sequence twice, for queries and for keys.
    is_self_attention = np.array_equal(call.query, call.key)
    for row in range(rows):
        mask = call.allowed[row]
        keys = mask.any((0, 1))
        queries = mask.any(-1).all(0)
        if is_self_attention:
            queries = queries & keys
        if not queries.any():
            continue
        real = [
            [x[row][places] for x in matrices]
            for places, matrices in zip((queries, keys, keys), made)
        ]
        mask = mask[:, queries][:, :, keys]
        yield min(mask.shape[1:]), *head_figures(*real, heads.scales, mask)


def _split(x, sizes):
    """A projection as float64, a list with an array `[B, T, H]` per head."""
    x = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")
    x = x.reshape(*x.shape[:2], -1)  # Keras's is [B, T, N, H]
    return np.split(x, np.cumsum(sizes)[:-1], axis=-1)


def _head_reports(number, layer, lengths, figures):
    for head, size in enumerate(Heads.of(layer).sizes):
        values = {
            name: [float(sequence[name][head]) for sequence in figures]
            for name in figures[0]
        }
        condition = values.pop("condition_number")
        yield HeadReport(
            layer=number,
            head=head,
            head_size=size,
            mean_length=float(np.mean(lengths)),
            longest_length=int(max(lengths)),
            bottleneck=bool(size < max(lengths)),
            condition_number=float(np.median(condition)),
            **{name: float(np.mean(value)) for name, value in values.items()},
        )


def head_figures(
    queries: Sequence[np.ndarray],
    keys: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    scales: Sequence[float],
    allowed: np.ndarray,
) -> tuple[dict[str, np.ndarray], float]:
    """The metrics of the heads of one layer on one sequence, in NumPy.

    For each of the N heads `queries` `[T, H]`, `keys` `[S, H]` and `values`
    `[S, H_value]`, float64, and the factor of its logits. Each row of
    `allowed`, bool `[N or 1, T, S]`, allows something. Returns an array `[N]`
    of each metric, and the condition number of all heads side by side. All are
    NaN if an argument is not finite.
    """
    if not all(np.isfinite(x).all() for x in (*queries, *keys, *values)):
        return {name: np.full(len(queries), np.nan) for name in METRICS}, np.nan
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
    return dict(zip(METRICS, figures)), together


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
