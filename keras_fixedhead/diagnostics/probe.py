"""The attention of a live model, measured head by head.

Shape letters: B batch, T query length, S key length, N heads, H head size.
"""

import contextlib
import functools
import inspect
from typing import Any

import keras
import keras_hub
import numpy as np
import rich.progress
import threadpoolctl
from keras import ops, tree

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.attention_functions import combine_attention_masks
from keras_fixedhead.diagnostics.report import (
    METRICS,
    AttentionReport,
    HeadReport,
    LayerReport,
)

# A singular value counts towards the rank above this times the largest times
# the longer side; below is rounding noise, as queries and keys are float32.
_EPSILON = np.finfo("float32").eps
_KERAS = keras.layers.MultiHeadAttention
_LAYERS = (
    FixedMultiHeadAttention,
    _KERAS,
    keras.layers.GroupQueryAttention,
    keras.layers.Attention,
)


def attention_report(
    model: keras.Model, inputs: Any, batch_size: int = 32, verbose: bool = False
) -> AttentionReport:
    """Ranks, entropies and conditioning of a model's attention, head by head.

    The logits of a head of size H have rank H at most, so it cannot make every
    attention pattern of more than H tokens (Theorem 1 of
    https://arxiv.org/abs/2002.07028). The report shows how much of that rank
    the heads use. Logits are without masks, scores with them. Padding and
    sequences without a real token do not count.

    The report computes queries, keys and values from the inputs of each
    attention layer, without dropout, in the compute dtype, and the rest in
    float64. Figures of a layer that are not finite are NaN. The cost grows with
    the cube of the length: tens of sequences are enough.

    Args:
        model: a built Keras model whose attention layers are
            `FixedMultiHeadAttention` or Keras's or KerasHub's plain
            `MultiHeadAttention`, or a KerasHub task with one as its
            `backbone`. `left_out` names other attention layers of Keras.
        inputs: the inputs of the model or of the task's backbone, arrays
            `[B, ...]`; for a task whose preprocessor returns those, also a
            string or a list of strings.
        batch_size: how many rows are computed at once.
    """
    inputs = _tokenize(model, inputs)
    attentions = [
        layer for layer in model._flatten_layers() if isinstance(layer, _LAYERS)
    ]
    if isinstance(model, keras_hub.models.Task):
        model = model.backbone
        if isinstance(inputs, dict):
            # A task may take more than its backbone.
            inputs = {k: x for k, x in inputs.items() if k in model.input}
    plain = [layer for layer in attentions if _is_plain(layer)]
    found = _run(model, inputs, plain, batch_size, verbose)
    seen = {id(layer) for layer, _ in found}
    others = [layer for layer in attentions if id(layer) not in seen]
    # A layer that was never called has no path yet.
    left_out = tuple(layer.path or layer.name for layer in others)
    if not found:
        raise ValueError(
            "`model` must compute attention of a real token, with "
            "FixedMultiHeadAttention or keras.layers.MultiHeadAttention. "
            f"Received: {model!r}; left out: {', '.join(left_out)}"
        )
    heads: list[HeadReport] = []
    layers: list[LayerReport] = []
    for number, (layer, sequences) in enumerate(found):
        lengths, metrics, conditions = zip(*sequences)
        heads.extend(_head_reports(number, layer, lengths, metrics))
        condition = float(np.median(conditions))
        layers.append(
            LayerReport(number, layer.path, layer.num_heads, condition)
        )
    longest = max(len(sequences) for _, sequences in found)
    return AttentionReport(tuple(heads), tuple(layers), longest, left_out)


def _run(model, inputs, layers, batch_size, verbose):
    arrays = [
        ops.convert_to_numpy(ops.convert_to_tensor(x))
        for x in tree.flatten(inputs)
    ]
    rows = len(arrays[0])
    batch_size = positive_int("batch_size", batch_size)
    found = {}
    # Several threads hinder each other on matrices so small.
    with threadpoolctl.threadpool_limits(1, "blas"):
        for start in rich.progress.track(
            range(0, rows, batch_size),
            "Attention",
            transient=True,
            disable=not verbose,
        ):
            end = start + batch_size
            batch = [ops.convert_to_tensor(x[start:end]) for x in arrays]
            with _recorded_calls(layers) as calls:
                model(tree.pack_sequence_as(inputs, batch), training=False)
            # A layer that is called twice is reported twice.
            for number, (layer, sequences) in enumerate(calls):
                found.setdefault(number, (layer, []))[1].extend(sequences)
    return [call for call in found.values() if call[1]]


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
            "Texts need a task whose preprocessor returns the backbone's "
            f"inputs. Received: {type(model).__name__} with {preprocessor=}"
        )
    return batch


def _is_plain(layer):
    """Whether it is the softmax of scaled products, and nothing more."""
    kind = type(layer)
    if isinstance(layer, FixedMultiHeadAttention):
        return kind.call is FixedMultiHeadAttention.call
    return (
        isinstance(layer, _KERAS)
        and kind.call is _KERAS.call
        and kind._compute_attention is _KERAS._compute_attention
        and not layer.get_config()["use_gate"]
    )


@contextlib.contextmanager
def _recorded_calls(layers):
    """Yields a list to which each call adds the layer and its `_sequences`.

    Calls over other axes than the second of three are not added, nor calls
    whose tensors have no values.
    """
    calls = []
    for layer in layers:
        layer.call = functools.partial(_call, layer, layer.call, calls)
    try:
        yield calls
    finally:
        for layer in layers:
            del layer.call  # the method of its class is left


def _call(layer, call, calls, *args, **kwargs):
    bound = inspect.signature(call).bind(*args, **kwargs)
    bound.apply_defaults()
    query = bound.arguments["query"]
    if len(query.shape) == 3 and _has_values(query):
        calls.append((layer, list(_sequences(layer, bound.arguments))))
    return call(*args, **kwargs)


def _has_values(x):
    try:
        ops.convert_to_numpy(x)
    except Exception:  # each backend has an error of its own
        return False
    return True


def _sequences(layer, given):
    """Yields the length and `_head_metrics` of each real sequence."""
    query = given["query"]
    value = query if given["value"] is None else given["value"]
    key = value if given["key"] is None else given["key"]
    # As arrays they carry no implicit masks, which a projection would lose.
    query, key, value = map(ops.convert_to_numpy, (query, key, value))
    if isinstance(layer, FixedMultiHeadAttention):
        projections = layer.query, layer.key, layer.value
        sections = np.cumsum(layer.head_sizes)[:-1]
        scales, window = layer.attention_scales, layer.attention_window
    else:
        projections = layer.query_dense, layer.key_dense, layer.value_dense
        sections = layer.num_heads
        scales = 1.0 / np.sqrt(_head_sizes(layer))
        window = layer.get_config()["sliding_window"]
    # Of queries, keys and values, an array [B, T, H] per head.
    parts = [
        np.split(_side_by_side(projection(x)), sections, axis=-1)
        for projection, x in zip(projections, (query, key, value))
    ]
    # Keras's layer takes float masks of ones and zeros.
    masks = {
        name: None if given[name] is None else ops.cast(given[name], "bool")
        for name in ("query_mask", "value_mask", "key_mask", "attention_mask")
    }
    mask = combine_attention_masks(
        query.shape[1],
        key.shape[1],
        **masks,
        use_causal_mask=given["use_causal_mask"],
        attention_window=window,
    )
    allowed = np.ones((query.shape[0], 1, query.shape[1], key.shape[1]), bool)
    if mask is not None:
        allowed = allowed & ops.convert_to_numpy(mask)
    # A layer may normalize one sequence twice, for queries and for keys.
    is_self_attention = np.array_equal(query, key)
    for row, mask in enumerate(allowed):
        keys = mask.any((0, 1))
        queries = mask.any(-1).all(0)
        if is_self_attention:
            queries = queries & keys
        if not queries.any():
            continue
        real = [
            [x[row][places] for x in matrices]
            for places, matrices in zip((queries, keys, keys), parts)
        ]
        mask = mask[:, queries][:, :, keys]
        yield min(mask.shape[1:]), *_head_metrics(*real, scales, mask)


def _side_by_side(x):
    """A projection as float64 `[B, T, W]`; Keras's is `[B, T, N, H]`."""
    x = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")
    return x.reshape(*x.shape[:2], -1)


def _head_sizes(layer):
    if isinstance(layer, FixedMultiHeadAttention):
        return layer.head_sizes
    return (layer.key_dim,) * layer.num_heads


def _head_reports(number, layer, lengths, metrics):
    *others, condition = np.stack(metrics, axis=1)
    means = [*(x.mean(0) for x in others), np.median(condition, axis=0)]
    for head, size in enumerate(_head_sizes(layer)):
        yield HeadReport(
            layer=number,
            head=head,
            head_size=size,
            mean_length=float(np.mean(lengths)),
            longest_length=int(max(lengths)),
            bottleneck=bool(size < max(lengths)),
            **{name: float(x[head]) for name, x in zip(METRICS, means)},
        )


def _head_metrics(queries, keys, values, scales, allowed):
    """The metrics of the heads of one layer on one sequence.

    Of each of the N heads, `queries` `[T, H]`, `keys` `[S, H]`, `values`
    `[S, H_value]`; `allowed` is `[N or 1, T, S]`. Returns an array
    `[len(METRICS), N]` and the condition number of all heads side by side.
    """
    if not all(np.isfinite(x).all() for x in (*queries, *keys, *values)):
        return np.full((len(METRICS), len(queries)), np.nan), np.nan
    longer = max(allowed.shape[1:])
    metrics, outputs = [], []
    for head, (query, key, value) in enumerate(zip(queries, keys, values)):
        mask = allowed[head if len(allowed) > 1 else 0]
        scores = np.where(mask, scales[head] * query @ key.T, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
        outputs.append(scores @ value)
        metrics.append(
            (
                *_ranks(_product(query, key), longer),
                *_ranks(scores, longer),
                _entropy(scores).mean(),
                _condition(outputs[-1]),
            )
        )
    together = _condition(np.concatenate(outputs, axis=-1))
    return np.transpose(metrics), together


def _product(query, key):
    """A matrix with the singular values of `query @ key.T` that are not 0.

    `[H, H]` where the head is smaller than the sequences, which is faster.
    """
    if query.shape[-1] < min(len(query), len(key)):
        query, key = (np.linalg.qr(x, mode="r") for x in (query, key))
    return query @ key.T


def _ranks(matrix, longer):
    """The numerical and the effective rank; `longer` is the longer side."""
    values = np.linalg.svd(matrix, compute_uv=False)
    rank = (values > values[0] * longer * _EPSILON).sum()
    return rank, np.exp(_entropy(values / values.sum())) if rank else 0.0


def _entropy(shares):
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return -(shares * logs).sum(-1)


def _condition(matrix):
    """The largest singular value by the smallest; inf below full rank."""
    values = np.linalg.svd(matrix, compute_uv=False)
    if values[-1] <= values[0] * max(matrix.shape) * _EPSILON:
        return np.inf
    return float(values[0] / values[-1])
