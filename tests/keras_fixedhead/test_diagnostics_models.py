"""The attention report of models that others make, however deep it lies."""

import keras
import keras_hub
import numpy as np
import pytest
import scipy.stats
from keras import ops

from keras_fixedhead import FixedMultiHeadAttention
from keras_fixedhead.diagnostics import attention_report
from tests.tiny_models import randomize


class Subclassed(keras.Model):
    """Calls two attention layers twice; the second, across as well."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(53, 11)
        self.norm = keras.layers.LayerNormalization()
        self.first = keras.layers.MultiHeadAttention(
            3, 5, value_dim=7, dropout=0.5
        )
        self.second = FixedMultiHeadAttention(2, head_size=[3, 11])

    def call(self, inputs, training=None, scores=None):
        x = self.embedding(inputs["ids"])
        for memory in (self.embedding(inputs["memory"]), None):
            normed = self.norm(x)
            for layer, arguments, causal in (
                (self.first, (normed, normed), True),
                (self.second, (x, memory), False),
            ):
                added, layer_scores = layer(
                    *arguments,
                    use_causal_mask=causal,
                    return_attention_scores=True,
                )
                x = x + added
                if scores is not None:
                    scores.append(layer_scores)
            x = keras.random.dropout(x, 0.5) if training else x
        return x


@pytest.mark.any_backend
def test_a_subclass_that_calls_layers_twice_and_across():
    model = Subclassed()
    rng = np.random.default_rng(0)
    inputs = {
        "ids": rng.integers(0, 53, (3, 6)),
        "memory": rng.integers(0, 53, (3, 4)),
    }
    model(inputs)
    randomize(model, scale=0.5)
    report = attention_report(model, inputs)
    assert [layer.num_heads for layer in report.layers] == [3, 2, 3, 2]
    scores = []
    model(inputs, scores=scores)
    for number, expected in enumerate(scores):
        heads = report.heads_of(number)
        matrices = ops.convert_to_numpy(expected).astype("float64")
        np.testing.assert_allclose(
            [head.entropy for head in heads],
            scipy.stats.entropy(matrices, axis=-1).mean((0, 2)),
            rtol=1e-4,
        )
        ranks = np.linalg.matrix_rank(matrices, rtol=6 * 1.2e-7)
        np.testing.assert_allclose(
            [head.attention_rank for head in heads], ranks.mean(0)
        )
    # Causal: rows have one more to attend to each time.
    assert [head.longest_length for head in report.heads_of(0)] == [6] * 3
    assert [head.longest_length for head in report.heads_of(1)] == [4] * 2
    assert [head.bottleneck for head in report.heads_of(1)] == [True, False]


@pytest.mark.any_backend
def test_what_is_left_out_is_named():
    plain = keras.layers.MultiHeadAttention

    class Rotated(plain):
        def _compute_attention(self, query, key, value, *args, **kwargs):
            return super()._compute_attention(
                query[:, ::-1], key, value, *args, **kwargs
            )

    class Doubled(plain):
        def call(self, query, value, key=None, **kwargs):
            return 2.0 * super().call(query, value, key, **kwargs)

    class FixedDoubled(FixedMultiHeadAttention):
        def call(self, query, value=None, key=None, **kwargs):
            return 2.0 * super().call(query, value, key, **kwargs)

    class Loop(keras.Model):
        def __init__(self):
            super().__init__(name="loop")
            fixed = FixedMultiHeadAttention
            self.plain = plain(2, 3, name="plain")
            self.fixed_doubled = FixedDoubled(2, 3, name="fixed")
            self.looped = fixed(2, 3, name="looped")
            self.unused = fixed(2, 3, name="unused")
            self.other_axes = plain(2, 3, name="other_axes")
            self.others = [
                keras.layers.GroupQueryAttention(3, 2, 1, name="grouped"),
                plain(2, 3, use_gate=True, name="gated"),
                Rotated(2, 3, name="rotated"),
                Doubled(2, 3, name="doubled"),
            ]

        def call(self, x):
            x = self.fixed_doubled(self.plain(x, x))
            x = self.other_axes(x[:, None], x[:, None])[:, 0]
            for layer in self.others:
                x = layer(x, x)
            return ops.vectorized_map(lambda row: self.looped(row[None])[0], x)

        def build(self, shape):
            self.looped.build(shape)

    model = Loop()
    values = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    model(values)
    report = attention_report(model, values)
    assert [layer.name for layer in report.layers] == ["loop/plain"]
    names = {path.split("/")[-1] for path in report.left_out}
    left_out = "looped unused other_axes grouped gated rotated doubled fixed"
    assert names == set(left_out.split())
    assert "Attention layers left out: 8." in report.summary
    assert "Left out: loop/grouped" in str(report)


@pytest.mark.any_backend
def test_the_head_of_a_task_is_left_out(make_backbone, inputs):
    backbone = make_backbone()
    x = backbone.input
    pooled = FixedMultiHeadAttention(2, head_size=3, name="head")(
        backbone(x)["sequence_output"]
    )

    class Task(keras_hub.models.Task):
        def __init__(self):
            self.backbone = backbone
            self.preprocessor = None
            super().__init__(inputs=x, outputs=pooled)

    # A task may have inputs that its backbone has not.
    report = attention_report(Task(), {**inputs, "labels": np.ones(5)})
    assert len(report.layers) == 2
    assert report.left_out == ("head",)


@pytest.mark.any_backend
def test_implicit_masks_of_a_functional_model():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(53, 11, mask_zero=True)(ids)
    fixed = FixedMultiHeadAttention(2, head_size=3)
    plain = keras.layers.MultiHeadAttention(2, 3)
    model = keras.Model(ids, plain(fixed(x), x))
    randomize(model, scale=0.5)
    tokens = np.array([[5, 6, 7, 8, 0, 0], [9, 4, 0, 0, 0, 0]])
    report = attention_report(model, tokens)
    assert {head.mean_length for head in report.heads} == {3.0}
    for row, length in ((0, 4), (1, 2)):
        short = attention_report(model, tokens[row : row + 1, :length])
        alone = attention_report(model, tokens[row : row + 1])
        for head, other in zip(alone.rows(), short.rows()):
            assert head == pytest.approx(other, rel=1e-3)


@pytest.mark.any_backend
def test_layers_of_one_name_and_sequences_made_twice():
    """As in most encoders that normalize first; the padding stays out."""

    class Block(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm = keras.layers.LayerNormalization(name="norm")
            self.attention = keras.layers.MultiHeadAttention(2, 3, name="mha")

        def call(self, x, mask):
            return x + self.attention(
                self.norm(x), self.norm(x), attention_mask=mask[:, None]
            )

    x = {
        "x": {"x": keras.Input((None, 6))},
        "mask": keras.Input((None,), name="mask"),
    }
    outputs = Block()(Block()(x["x"]["x"], x["mask"]), x["mask"])
    model = randomize(keras.Model(x, outputs), scale=0.5)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(1, 7, 6)).astype("float32")
    report = attention_report(
        model, {"x": {"x": values}, "mask": np.arange(7)[None] < 4}
    )
    expected = attention_report(
        model, {"x": {"x": values[:, :4]}, "mask": np.ones((1, 4))}
    )
    assert len(report.layers) == 2
    for row, other in zip(report.rows(), expected.rows()):
        assert row == pytest.approx(other, rel=1e-3)


def test_keys_of_their_own_and_a_mask_of_each_head():
    rng = np.random.default_rng(0)
    inputs = [keras.Input((7, size)) for size in (6, 3, 5)]
    mask = keras.Input((2, 7, 7), dtype="bool")
    # On JAX Keras's layer takes values of the size of keys alone.
    value_dim = 3 if keras.backend.backend() == "jax" else 4
    layer = keras.layers.MultiHeadAttention(
        2, 3, value_dim=value_dim, sliding_window=5
    )
    query, value, key = inputs
    output = layer(query, value, key, attention_mask=mask)
    model = randomize(keras.Model([*inputs, mask], output), scale=0.5)
    values = [
        rng.normal(size=(1, *x.shape[1:])).astype("float32") for x in inputs
    ]
    allowed = np.eye(7, dtype=bool) | (rng.random((1, 2, 7, 7)) < 0.5)
    allowed[0, 1, 2] = False  # a query that one head hides, no head shows
    report = attention_report(model, [*values, allowed])
    _, scores = layer(
        *values, attention_mask=allowed, return_attention_scores=True
    )
    scores = ops.convert_to_numpy(scores).astype("float64")
    rows = np.delete(scores[0], 2, axis=1)
    made = ops.convert_to_numpy(layer.value_dense(values[1]))[0]
    for head in range(2):
        reported = report.heads[head]
        assert reported.entropy == pytest.approx(
            scipy.stats.entropy(rows[head], axis=-1).mean(), rel=1e-4
        )
        assert reported.condition_number == pytest.approx(
            np.linalg.cond(rows[head] @ made[:, head]), rel=0.01
        )
    large = attention_report(model, [1e3 * values[0], *values[1:], allowed])
    assert np.isfinite([head.entropy for head in large.heads]).all()
