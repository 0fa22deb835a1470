"""The attention report, against NumPy, head by head and row by row."""

import dataclasses

import keras
import keras_hub
import numpy as np
import pytest
import scipy.stats
from keras import ops

from keras_fixedhead import FixedHeadMaskedLM, FixedHeadMaskedLMPreprocessor
from keras_fixedhead.convert import from_bert_backbone
from keras_fixedhead.diagnostics import attention_report
from tests.tiny_models import new_bert, randomize


def numpy_figures(query, key, value, allowed, scale=None):
    """One head on one sequence; only its real tokens."""
    scale = scale or 1 / np.sqrt(query.shape[1])
    logits = scale * query @ key.T
    scores = np.zeros_like(logits)
    for i in range(len(query)):
        weights = np.where(allowed[i], np.exp(logits[i]), 0.0)
        scores[i] = weights / weights.sum()
    epsilon = np.finfo("float32").eps
    figures = {}
    for name, matrix in (("logit", logits), ("attention", scores)):
        values = np.linalg.svd(matrix, compute_uv=False)
        figures[f"{name}_rank"] = np.linalg.matrix_rank(
            matrix, tol=values[0] * max(matrix.shape) * epsilon
        )
        figures[f"{name}_effective_rank"] = np.exp(scipy.stats.entropy(values))
    figures["entropy"] = np.mean([scipy.stats.entropy(row) for row in scores])
    return figures, scores @ value


def expected_rows(projections, x, sizes, places, allowed, scale=None):
    """Rows of one layer, and the condition number of all of its heads.

    Of the projections of inputs `[B, T, D]`, the real positions of each
    sequence, a function that says where these may attend, and the scale of
    the logits, by default `1 / sqrt(size)`.
    """
    made = [numpy_dense(dense, x) for dense in projections]
    rows, outputs = [], [[] for _ in places]
    for end, size in zip(np.cumsum(sizes), sizes):
        figures, conditions = [], []
        for i, tokens in enumerate(places):
            one, output = numpy_figures(
                *(y[i, tokens, end - size : end] for y in made),
                allowed(tokens, tokens),
                scale,
            )
            figures.append(one)
            conditions.append(np.linalg.cond(output))
            outputs[i].append(output)
        lengths = list(map(len, places))
        rows.append(
            {
                "head_size": size,
                "mean_length": np.mean(lengths),
                "longest_length": max(lengths),
                "bottleneck": size < max(lengths),
                **{
                    name: np.mean([f[name] for f in figures])
                    for name in figures[0]
                },
                "condition_number": np.median(conditions),
            }
        )
    together = [np.linalg.cond(np.concatenate(x, -1)) for x in outputs]
    return rows, np.median(together)


def numpy_dense(dense, x):
    """The outputs of a projection `[B, T, W]`, float64."""
    kernel, bias = (
        ops.convert_to_numpy(weight).astype("float64")
        for weight in (dense.kernel, dense.bias)
    )
    return x @ kernel.reshape(x.shape[-1], -1) + bias.ravel()


def check(report, expected):
    """A report against what `expected_rows` returns for each layer."""
    assert len(report.layers) == len(expected)
    for number, (rows, condition) in enumerate(expected):
        heads = [dataclasses.asdict(x) for x in report.heads_of(number)]
        assert len(heads) == len(rows) == report.layers[number].num_heads
        for head, row in enumerate(rows):
            row = {"layer": number, "head": head, **row}
            assert heads[head].keys() == row.keys()
            check_condition(heads[head], row.pop("condition_number"))
            assert heads[head] == pytest.approx(row, rel=1e-3)
        check_condition(dataclasses.asdict(report.layers[number]), condition)


def check_condition(report, expected):
    """What rounding leaves of a condition number."""
    reported = report.pop("condition_number")
    if expected < 1e4:
        assert reported == pytest.approx(expected, rel=0.01)
    else:
        assert reported > 5e3


def layer_inputs(backbone, inputs):
    """Each attention layer, and what it sees."""
    tokens = backbone.token_embedding(inputs["token_ids"])
    x = tokens + backbone.position_embedding(tokens)
    x = x + backbone.segment_embedding(inputs["segment_ids"])
    x = backbone.embeddings_layer_norm(x)
    for layer in backbone.transformer_layers:
        yield layer.attention, ops.convert_to_numpy(x).astype("float64")
        x = layer(x, padding_mask=inputs["padding_mask"])


@pytest.mark.parametrize(
    ("head_size", "window", "scale"),
    [([2, 5], None, None), ([[2, 3, 7], 5], 3, 0.7)],
)
def test_equals_numpy(make_backbone, inputs, head_size, window, scale):
    backbone = randomize(
        make_backbone(
            head_size=head_size, attention_window=window, attention_scale=scale
        ),
        scale=0.5,
    )
    report = attention_report(backbone, inputs, batch_size=2)
    assert report.sequences == 4  # one has no real token
    real = inputs["padding_mask"] == 1
    rows = np.flatnonzero(real.any(1))

    def allowed(queries, keys):
        return abs(queries[:, None] - keys) < (window or np.inf)

    check(
        report,
        [
            expected_rows(
                (layer.query, layer.key, layer.value),
                x[rows],
                layer.head_sizes,
                [np.flatnonzero(real[row]) for row in rows],
                allowed,
                scale,
            )
            for layer, x in layer_inputs(backbone, inputs)
        ],
    )


def test_keras_hub_encoder():
    """Also inside another model, and with dropout."""
    x = keras.Input((None, 12))
    mask = keras.Input((None,), dtype="int32")
    layer = keras_hub.layers.TransformerEncoder(
        23, 3, dropout=0.5, normalize_first=True
    )
    inner = keras.Model([x, mask], layer(x, padding_mask=mask))
    model = keras.Model([x, mask], inner([x, mask]))
    randomize(model, scale=0.5)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 5, 12)).astype("float32")
    padding_mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
    attention = layer._self_attention_layer
    seen = ops.convert_to_numpy(layer._self_attention_layer_norm(values))
    expected = expected_rows(
        (attention.query_dense, attention.key_dense, attention.value_dense),
        seen.astype("float64"),
        [4, 4, 4],
        [np.arange(5), np.arange(3)],
        lambda queries, keys: np.ones((len(queries), len(keys)), bool),
    )
    check(attention_report(model, [values, padding_mask]), [expected])


@pytest.mark.any_backend
def test_keras_hub_s_bert_is_reported_as_what_it_is_converted_to(inputs):
    bert = randomize(new_bert(72, hidden_dim=12), scale=0.5)
    report = attention_report(bert, inputs)
    other = attention_report(from_bert_backbone(bert), inputs)
    assert report.sequences == other.sequences == 4
    for row, expected in zip(report.rows(), other.rows(), strict=True):
        assert row == pytest.approx(expected, rel=1e-3)
    task = keras_hub.models.BertTextClassifier(bert, num_classes=2)
    assert attention_report(task, inputs).rows() == report.rows()


def test_uniform_attention(make_backbone, inputs):
    """Queries of zero: logits of rank 0, scores that a person can tell."""
    backbone = randomize(make_backbone())
    for layer in backbone.transformer_layers:
        for weight in layer.attention.query.weights:
            weight.assign(np.zeros(weight.shape))
    for row in attention_report(backbone, inputs).rows():
        assert row["logit_rank"] == row["logit_effective_rank"] == 0.0
        assert row["condition_number"] == np.inf
        assert row["attention_rank"] == 1.0
        assert row["attention_effective_rank"] == pytest.approx(1.0)
        expected = np.mean(np.log([13, 1, 5, 8]))
        assert row["entropy"] == pytest.approx(expected)


def test_mixed_precision(make_backbone, inputs):
    """Queries and keys are rounded; the rest is float64."""
    backbone = randomize(make_backbone())
    rounded = make_backbone(dtype="mixed_bfloat16")
    rounded.set_weights(backbone.get_weights())
    expected = attention_report(backbone, inputs).rows()
    for row, other in zip(attention_report(rounded, inputs).rows(), expected):
        assert row["entropy"] == pytest.approx(other["entropy"], rel=0.02)
        assert row["entropy"] != other["entropy"]


@pytest.mark.any_backend
def test_texts(make_embedder):
    embedder = randomize(make_embedder())
    texts = ["attention head", "a b c"]
    report = attention_report(embedder, texts)
    # [CLS] and [SEP] are real tokens: attention, head; a, b, c.
    assert report.heads[0].mean_length == 4.5
    assert report.heads[0].longest_length == 5
    assert report == attention_report(embedder, embedder.preprocessor(texts))
    assert attention_report(embedder, "a b c").sequences == 1


@pytest.mark.any_backend
@pytest.mark.parametrize("in_a_notebook", [False, True])
def test_table(make_backbone, inputs, in_a_notebook, monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: in_a_notebook)
    report = attention_report(make_backbone(head_size=[[2, 3, 5], 13]), inputs)
    assert report.summary.startswith(
        "4 sequences of 6.8 tokens, the longest of 13.\n3 of 6 heads are "
    )
    lines = [line.split() for line in str(report).splitlines()]
    layers = [line for line in lines if line[:1] in (["0"], ["1"])]
    assert [line[:4] for line in layers] == [
        ["0", "3", "2-5", "yes"],
        ["1", "3", "13", "no"],
    ]
    ranks = [head.logit_rank for head in report.heads[:3]]
    assert float(layers[0][4]) == pytest.approx(np.mean(ranks), abs=0.1)


@pytest.mark.any_backend
def test_nothing_of_the_model_changes(make_embedder, tmp_path):
    embedder = randomize(make_embedder())
    inputs = embedder.preprocessor(["a b c"])

    def state():
        attributes = [set(vars(layer)) for layer in embedder._flatten_layers()]
        return attributes, embedder.get_config(), embedder.get_weights()

    embedder(inputs)
    before = state()
    attention_report(embedder, inputs)
    np.testing.assert_equal(state(), before)


def test_weights_that_are_not_finite(make_backbone, inputs):
    backbone = make_backbone()
    bias = backbone.transformer_layers[1].attention.query.bias
    bias.assign(np.full(bias.shape, np.nan))
    report = attention_report(backbone, inputs)
    assert np.isfinite([head.entropy for head in report.heads_of(0)]).all()
    for head in report.heads_of(1):
        values = dataclasses.astuple(head)[6:]
        assert len(values) == 6 and np.isnan(values).all()
    assert np.isnan(report.layers[1].condition_number)


def test_what_cannot_be_reported(make_embedder, inputs):
    embedder = make_embedder()
    masked_lm = FixedHeadMaskedLM(
        embedder.backbone,
        FixedHeadMaskedLMPreprocessor(
            embedder.preprocessor.tokenizer, sequence_length=13
        ),
    )
    x = keras.Input((4, 6))
    grouped = keras.layers.GroupQueryAttention(3, 2, 1, name="grouped")
    other = keras.Model(x, grouped(x, x))
    nothing = {name: 0 * x for name, x in inputs.items()}
    for model, x, message in (
        (embedder.backbone, ["a"], "Backbone.*preprocessor=None"),
        (masked_lm, ["a b c"], "Texts need.*FixedHeadMaskedLM"),
        (embedder, nothing, "attention of a real token"),
        (other, np.ones((1, 4, 6)), "MultiHeadAttention.*left out: grouped"),
    ):
        with pytest.raises(ValueError, match=message):
            attention_report(model, x)
    with pytest.raises(ValueError, match="`batch_size` must be.*=0"):
        attention_report(embedder, inputs, batch_size=0)
