"""The attention of a live model, looked at.

Shape letters: B batch, T query length, S key length, N heads, H head size.
"""

import keras
import keras_hub
import numpy as np
import rich.progress
import threadpoolctl
from keras import ops, tree

from keras_fixedhead.diagnostics.attention_calls import (
    attention_calls,
    attention_left_out,
    head_scales,
    head_widths,
    projections,
)
from keras_fixedhead.diagnostics.matrices import head_figures
from keras_fixedhead.diagnostics.report import (
    AttentionReport,
    HeadReport,
    LayerReport,
)
from keras_fixedhead.diagnostics.symbolic import (
    compute,
    forgotten,
    nodes_between,
)


def attention_report(model, inputs, batch_size=32, verbose=False):
    """Ranks, entropies and conditioning of a model's attention, head by head.

    A head of size H has logits `Q K^T / sqrt(H)` (a layer may have another
    scale) of rank H at most, hence cannot make every attention pattern of
    more than H tokens (Bhojanapalli et al. 2020, Theorem 1,
    https://arxiv.org/abs/2002.07028). This says how much of that rank the
    heads use. Logits are without masks, scores with them. Padding is left out
    of every figure, and so are sequences without a real token: padding is what
    no query may attend to.

    The inputs of each attention layer are read, and what it does is computed
    from its projections; dropout is off, and nothing of the model changes.
    Queries, keys and values are in the compute dtype, the rest is float64. A
    singular value counts to the rank above the largest times the longer side
    times float32's epsilon. Figures of a layer that are not finite are NaN.

    Singular values of every head on every sequence are computed, in O(T^3):
    tens of sequences say enough.

    Args:
        model: a built Keras model whose attention layers are
            `FixedMultiHeadAttention` or Keras's or KerasHub's plain
            `MultiHeadAttention`, such as a `FixedHeadBackbone`, a KerasHub
            BERT, or a KerasHub task with one as its `backbone`. Attention of
            other kinds is named in the report, see `left_out`.
        inputs: the model's inputs (a task's backbone's), arrays `[B, ...]` in
            the structure that the model takes; to a task whose preprocessor
            returns those, a string or a list of strings too.
        batch_size: int. How many rows are computed at once.
        verbose: bool. Whether to show a progress bar.

    Returns:
        An `AttentionReport`.

    Raises:
        ValueError: if `model` is not built, holds no such attention or some
            that cannot be found, or `inputs` lacks one, has no real token, or
            is text that the model cannot take.
    """
    return AttentionProbe(model, inputs, batch_size).report(verbose)


class AttentionProbe:
    """Reports on the same inputs again and again, as a model learns.

    Args, errors: as of `attention_report`. The model is followed once; its
    weights are those at each report.
    """

    def __init__(self, model, inputs, batch_size=32):
        inputs = _tokenize(model, inputs)
        whole = model
        if isinstance(model, keras_hub.models.Task):
            model = model.backbone
        if not isinstance(model, keras.Model) or not model.built:
            raise ValueError(
                "`model` must be a built Keras model: call it once, or its "
                f"`build`. Received: model={model!r}"
            )
        self._inputs = _arrays(model, inputs)
        self._rows = len(tree.flatten(self._inputs)[0])
        if batch_size < 1:
            raise ValueError(
                "`batch_size` must be a positive integer. "
                f"Received: batch_size={batch_size!r}"
            )
        self._batch_size = min(batch_size, self._rows)
        self._symbolic = _symbolic(self._inputs, self._batch_size)
        with forgotten(model):
            self._calls = attention_calls(model, self._symbolic)
            # Each once, though layers share them.
            self._wanted = {
                id(x): x
                for call in self._calls
                for x in (call.query, call.key, call.value, call.allowed)
                if isinstance(x, keras.KerasTensor)
            }
            self._nodes = nodes_between(
                self._symbolic, list(self._wanted.values())
            )
        self._left_out = attention_left_out(whole, self._calls)
        if not self._calls:
            raise ValueError(
                "`model` must compute attention with FixedMultiHeadAttention, "
                "keras.layers.MultiHeadAttention or KerasHub's encoders. "
                f"Received: {model!r}, without any; left out: "
                f"{', '.join(self._left_out) or 'nothing'}"
            )

    def report(self, verbose=False):
        """Returns the `AttentionReport` of the model as it is now."""
        lengths = [[] for _ in self._calls]
        figures = [[] for _ in self._calls]
        conditions = [[] for _ in self._calls]
        starts = range(0, self._rows, self._batch_size)
        # Several threads hinder each other on matrices so small.
        with (
            threadpoolctl.threadpool_limits(1, "blas"),
            rich.progress.Progress(transient=True, disable=not verbose) as bar,
        ):
            task = bar.add_task(
                "Attention", total=len(starts) * len(self._calls)
            )
            for start in starts:
                seen = self._seen(start)
                rows = min(self._batch_size, self._rows - start)
                for i, call in enumerate(self._calls):
                    for length, heads, condition in _sequences(
                        call, seen, rows
                    ):
                        lengths[i].append(length)
                        figures[i].append(heads)
                        conditions[i].append(condition)
                    bar.advance(task)
        heads, layers = [], []
        for i, call in enumerate(self._calls):
            if not lengths[i]:
                raise ValueError(
                    "`inputs` must hold a real token, which attention may "
                    f"see. Received: {self._rows} rows without, at "
                    f"{call.layer.path}"
                )
            heads.extend(_head_reports(i, call, lengths[i], figures[i]))
            layers.append(
                LayerReport(
                    layer=i,
                    name=call.layer.path,
                    num_heads=call.layer.num_heads,
                    condition_number=float(np.median(conditions[i])),
                )
            )
        return AttentionReport(
            tuple(heads),
            tuple(layers),
            max(map(len, lengths)),
            self._left_out,
        )

    def _seen(self, start):
        """The wanted tensors of a batch, by the symbolic ones' identity."""
        # The last batch begins again at the first row, to be as large.
        rows = np.arange(start, start + self._batch_size) % self._rows
        values = {
            id(symbolic): ops.convert_to_tensor(x[rows], symbolic.dtype)
            for symbolic, x in zip(
                tree.flatten(self._symbolic), tree.flatten(self._inputs)
            )
        }
        compute(self._nodes, values)
        # Off with implicit masks, which the projections would warn of.
        return {key: ops.convert_to_numpy(values[key]) for key in self._wanted}


def _tokenize(model, inputs):
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, (list, tuple)) or not all(
        isinstance(text, str) for text in texts
    ):
        return inputs
    preprocessor = getattr(model, "preprocessor", None)
    batch = None if preprocessor is None else preprocessor(list(texts))
    # That of a masked language model would return labels, too.
    if not isinstance(batch, dict):
        raise ValueError(
            "Texts need a task whose preprocessor makes the backbone's inputs "
            "of them, such as a FixedHeadTextEmbedder. Pass those inputs "
            f"instead. Received: texts, and a {type(model).__name__} with "
            f"preprocessor={preprocessor!r}"
        )
    return batch


def _arrays(model, inputs):
    """Inputs as NumPy arrays, of a dictionary those that the model takes."""
    try:
        expected = model.input
    except (AttributeError, ValueError):
        expected = None  # of a subclass that was never called symbolically
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
            "`inputs` must be arrays with one and the same number of rows, one "
            "at least. Received: "
            f"{tree.map_structure(lambda x: x.shape, arrays)!r}"
        )
    _check_shapes(expected, arrays)
    return arrays


def _check_shapes(expected, arrays):
    """Raises unless arrays fit a functional model's inputs."""
    for x, array in zip(tree.flatten(expected), tree.flatten(arrays)):
        if x is not None and (
            len(x.shape) != array.ndim
            or any(
                size not in (None, received)
                for size, received in zip(x.shape[1:], array.shape[1:])
            )
        ):
            raise ValueError(
                f"`inputs` must have the shapes that the model takes, here "
                f"{tuple(x.shape)}. Received: {array.shape}"
            )


def _symbolic(arrays, batch_size):
    """Symbolic inputs with the shapes of a batch."""
    return tree.map_structure(
        lambda x: keras.Input(
            batch_shape=(batch_size, *x.shape[1:]),
            dtype="string" if x.dtype.hasobject else x.dtype.name,
        ),
        arrays,
    )


def _sequences(call, seen, rows):
    """Yields the length, the heads' figures and the condition number.

    Of each of the first `rows` sequences of a batch that has a real token.
    """

    sources = (call.query, call.key, call.value)
    sizes, value_sizes = head_widths(call.layer)
    scales = head_scales(call.layer)
    made = [
        _split(projection(seen[id(x)]), widths)
        for projection, x, widths in zip(
            projections(call.layer), sources, (sizes, sizes, value_sizes)
        )
    ]
    query, key = seen[id(call.query)], seen[id(call.key)]
    # One tensor, or made twice of one.
    is_self_attention = query is key or np.array_equal(query, key)
    batch, target = call.query.shape[:2]
    shape = (batch, 1, target, call.key.shape[1])
    allowed = np.ones(shape, bool)
    if call.allowed is not None:
        mask = seen.get(id(call.allowed), call.allowed)
        allowed = allowed & ops.convert_to_numpy(mask)
    for row in range(rows):
        mask = allowed[row]
        keys = mask.any((0, 1))
        queries = mask.any(-1).all(0)
        if is_self_attention:
            queries = queries & keys
        if not queries.any():
            continue
        heads = [
            [x[row][places] for x in heads]
            for places, heads in zip((queries, keys, keys), made)
        ]
        mask = mask[:, queries][:, :, keys]
        yield min(mask.shape[1:]), *head_figures(*heads, scales, mask)


def _split(x, sizes):
    """A projection as float64, a list with an array `[B, T, H]` per head."""
    x = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")
    x = x.reshape(*x.shape[:2], -1)  # Keras's is [B, T, N, H]
    return np.split(x, np.cumsum(sizes)[:-1], axis=-1)


def _head_reports(number, call, lengths, figures):
    longest = int(max(lengths))
    sizes, _ = head_widths(call.layer)
    for head, size in enumerate(sizes):
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
            longest_length=longest,
            bottleneck=bool(size < longest),
            condition_number=float(np.median(condition)),
            **{name: float(np.mean(value)) for name, value in values.items()},
        )
