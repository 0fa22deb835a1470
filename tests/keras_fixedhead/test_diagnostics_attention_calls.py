"""Which layers of a model the report finds, and what they see in a call."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedMultiHeadAttention,
)
from keras_fixedhead.diagnostics import attention_report
from tests.keras_fixedhead.attention_by_hand import (
    randomize,
    softmax_entropy,
)


@keras.saving.register_keras_serializable("test")
class Wrapped(keras.layers.Layer):
    """A layer that holds others; the second attends over the first's."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.LayerNormalization()
        self.first = keras.layers.MultiHeadAttention(
            3, 5, value_dim=7, dropout=0.5
        )
        self.second = FixedMultiHeadAttention(2, head_size=[3, 11])

    def build(self, shape):
        self.norm.build(shape)
        self.first.build(shape, shape)
        self.second.build(shape)

    def call(self, x, memory=None, training=None):
        normed = self.norm(x)
        x = x + self.first(normed, normed, use_causal_mask=True)
        x = keras.random.dropout(x, 0.5) if training else x
        return x + self.second(x, memory)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(53, 11)
        self.wrapped = Wrapped()

    def call(self, inputs):
        x = self.embedding(inputs["ids"])
        x = self.wrapped(x, memory=self.embedding(inputs["memory"]))
        return self.wrapped(x)


@pytest.mark.any_backend
def test_a_subclass_that_calls_a_layer_twice_and_across():
    model = Subclassed()
    rng = np.random.default_rng(0)
    inputs = {
        "ids": rng.integers(0, 53, (3, 6)),
        "memory": rng.integers(0, 53, (3, 4)),
    }
    model(inputs)
    randomize(model)
    before = ops.convert_to_numpy(model(inputs))
    report = attention_report(model, inputs)
    assert [layer.num_heads for layer in report.layers] == [3, 2, 3, 2]
    np.testing.assert_array_equal(ops.convert_to_numpy(model(inputs)), before)

    # By hand, with the layers' own scores.
    wrapped = model.wrapped
    x = model.embedding(inputs["ids"])
    scores = []
    for memory in (model.embedding(inputs["memory"]), None):
        normed = wrapped.norm(x)
        added, first = wrapped.first(
            normed, normed, use_causal_mask=True, return_attention_scores=True
        )
        x = x + added
        added, second = wrapped.second(x, memory, return_attention_scores=True)
        x = x + added
        scores += [first, second]
    for number, expected in enumerate(scores):
        heads = report.heads_of(number)
        np.testing.assert_allclose(
            [head.entropy for head in heads],
            softmax_entropy(expected),
            rtol=1e-4,
        )
        matrices = ops.convert_to_numpy(expected).astype("float64")
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
    class Rotated(keras.layers.MultiHeadAttention):
        def _compute_attention(self, query, key, value, *args, **kwargs):
            return super()._compute_attention(
                query[:, ::-1], key, value, *args, **kwargs
            )

    class Doubled(keras.layers.MultiHeadAttention):
        def call(self, query, value, key=None, **kwargs):
            return 2.0 * super().call(query, value, key, **kwargs)

    class FixedDoubled(FixedMultiHeadAttention):
        def call(self, query, value=None, key=None, **kwargs):
            return 2.0 * super().call(query, value, key, **kwargs)

    class SelfAttention(keras.layers.Layer):
        """Called like attention, but only what it holds attends."""

        def __init__(self, attention):
            super().__init__(name="wrapped")
            self.attention = attention

        def call(self, x):
            return self.attention(x, x)

    class ComputeAttentionMask(keras.layers.Layer):
        def call(self, x):
            return x

    class Loop(keras.Model):
        def __init__(self):
            super().__init__(name="loop")
            plain = keras.layers.MultiHeadAttention
            fixed = FixedMultiHeadAttention
            self.plain = SelfAttention(plain(2, 3, name="plain"))
            self.mask = ComputeAttentionMask()
            self.doubled = Doubled(2, 3, name="doubled")
            self.fixed_doubled = FixedDoubled(2, 3, name="fixed")
            self.looped = fixed(2, 3, name="looped")
            self.unused = fixed(2, 3, name="unused")
            self.other_axes = plain(2, 3, name="other_axes")
            self.grouped = keras.layers.GroupQueryAttention(
                3, 2, 1, name="grouped"
            )
            self.gated = plain(2, 3, use_gate=True, name="gated")
            self.rotated = Rotated(2, 3, name="rotated")
            step = fixed(2, 3, name="step")
            self.timed = keras.layers.TimeDistributed(step, name="timed")

        def call(self, x):
            x = self.fixed_doubled(self.mask(self.plain(x)))
            grid = self.timed(x[:, None])
            x = self.other_axes(grid, grid)[:, 0]
            for layer in (self.grouped, self.gated, self.rotated, self.doubled):
                x = layer(x, x)
            return ops.vectorized_map(lambda row: self.looped(row[None])[0], x)

        def build(self, shape):
            self.looped.build(shape)

    model = Loop()
    values = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    model(values)
    report = attention_report(model, values)
    assert [layer.name for layer in report.layers] == ["loop/wrapped/plain"]
    names = {path.split("/")[-1] for path in report.left_out}
    left_out = "looped unused other_axes grouped gated rotated doubled fixed"
    assert names == {*left_out.split(), "step"}
    assert "Attention layers left out: 9." in report.summary
    assert "Left out: loop/grouped" in str(report)


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

    report = attention_report(Task(), inputs)
    assert len(report.layers) == 2
    assert report.left_out == ("head",)

    class Model(keras.Model):
        """No task: what it calls a backbone is not all that it does."""

        def __init__(self):
            super().__init__()
            self.backbone = keras.Sequential([keras.layers.Dense(6)])
            self.attention = FixedMultiHeadAttention(2, head_size=3)

        def call(self, x):
            return self.attention(self.backbone(x))

    model = Model()
    model(np.ones((2, 5, 4)))
    assert len(attention_report(model, np.ones((2, 5, 4))).layers) == 1


def test_models_that_cannot_be_reported():
    x = keras.Input((4, 6))
    values = np.ones((1, 4, 6), "float32")
    with pytest.raises(ValueError, match="must compute attention with"):
        attention_report(keras.Model(x, keras.layers.Dense(2)(x)), values)

    grouped = keras.layers.GroupQueryAttention(3, 2, 1, name="grouped")
    with pytest.raises(ValueError, match="without any; left out: grouped"):
        attention_report(keras.Model(x, grouped(x, x)), values)


def test_a_call_that_leaves_the_backend():
    class ThroughNumPy(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = FixedMultiHeadAttention(2, head_size=3)

        def call(self, x):
            return self.attention(np.asarray(x))

        def build(self, shape):
            self.attention.build(shape)

    model = ThroughNumPy()
    model.build((1, 4, 6))
    randomize(model)
    values = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    x = keras.Input((4, 6))
    plain = keras.Model(x, model.attention(x))
    report = attention_report(model, values)
    assert report.rows() == attention_report(plain, values).rows()
