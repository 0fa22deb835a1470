"""The attention report of models that others make, however deep it lies."""

import dataclasses

import keras
import keras_hub
import numpy as np
import pytest
import scipy.stats
from keras import ops

from keras_fixedhead import (
    FixedMultiHeadAttention,
)
from keras_fixedhead.convert import from_bert_backbone
from keras_fixedhead.diagnostics import attention_report
from tests.keras_fixedhead.attention_by_hand import (
    check,
    check_condition,
    expected_rows,
    numpy_dense,
    randomize,
    softmax_entropy,
)


@pytest.mark.any_backend
def test_implicit_masks_of_a_functional_model():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(53, 11, mask_zero=True)(ids)
    fixed = FixedMultiHeadAttention(2, head_size=3)
    plain = keras.layers.MultiHeadAttention(2, 3)
    model = keras.Model(ids, plain(fixed(x), x))
    randomize(model)
    tokens = np.array([[5, 6, 7, 8, 0, 0], [9, 4, 0, 0, 0, 0]])
    report = attention_report(model, tokens)
    assert {head.mean_length for head in report.heads} == {3.0}
    for row, length in ((0, 4), (1, 2)):
        short = attention_report(model, tokens[row : row + 1, :length])
        alone = attention_report(model, tokens[row : row + 1])
        for head, other in zip(alone.rows(), short.rows()):
            assert head == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("normalize_first", [False, True])
def test_keras_hub_encoders(normalize_first):
    """Also inside another model, and with dropout."""
    x = keras.Input((None, 12))
    mask = keras.Input((None,), dtype="int32")
    layer = keras_hub.layers.TransformerEncoder(
        23, 3, dropout=0.5, normalize_first=normalize_first
    )
    inner = keras.Model([x, mask], layer(x, padding_mask=mask))
    model = keras.Model([x, mask], inner([x, mask]))
    randomize(model)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 5, 12)).astype("float32")
    padding_mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
    attention = layer._self_attention_layer
    seen = values
    if normalize_first:
        seen = ops.convert_to_numpy(layer._self_attention_layer_norm(values))
    expected = expected_rows(
        *(
            numpy_dense(dense, seen.astype("float64"))
            for dense in (
                attention.query_dense,
                attention.key_dense,
                attention.value_dense,
            )
        ),
        [4, 4, 4],
        [2 * (np.arange(5),), 2 * (np.arange(3),)],
        lambda queries, keys: np.ones((len(queries), len(keys)), bool),
    )
    check(attention_report(model, [values, padding_mask]), [expected])


@pytest.mark.any_backend
def test_keras_hub_s_bert_is_reported_as_what_it_is_converted_to(inputs):
    bert = randomize(
        keras_hub.models.BertBackbone(
            vocabulary_size=72,
            num_layers=2,
            num_heads=3,
            hidden_dim=12,
            intermediate_dim=23,
            max_sequence_length=17,
        )
    )
    report = attention_report(bert, inputs)
    other = attention_report(from_bert_backbone(bert), inputs)
    assert report.sequences == other.sequences == 4
    for row, expected in zip(report.rows(), other.rows(), strict=True):
        assert row == pytest.approx(expected, rel=1e-3)
    task = keras_hub.models.BertTextClassifier(bert, num_classes=2)
    assert attention_report(task, inputs).rows() == report.rows()


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
    model = randomize(keras.Model(x, outputs))
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
    model = randomize(keras.Model([*inputs, mask], output))
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
    made = numpy_dense(layer.value_dense, values[1])[0].reshape(7, 2, value_dim)
    outputs = [rows[head] @ made[:, head] for head in range(2)]
    for head in range(2):
        assert report.heads[head].entropy == pytest.approx(
            scipy.stats.entropy(rows[head], axis=-1).mean(), rel=1e-4
        )
        check_condition(
            dataclasses.asdict(report.heads[head]),
            np.linalg.cond(outputs[head]),
        )
    large = attention_report(model, [1e3 * values[0], *values[1:], allowed])
    assert np.isfinite([head.entropy for head in large.heads]).all()


@pytest.mark.parametrize(
    ("policy", "normalize_first"),
    [("float32", True), ("mixed_bfloat16", False)],
)
def test_what_a_subclass_does_to_floats(policy, normalize_first):
    """Several encoders; inputs in the compute dtype; no dropout ever."""

    class Encoder(keras.Model):
        def __init__(self):
            super().__init__(dtype=policy)
            self.encoders = [
                keras_hub.layers.TransformerEncoder(
                    23,
                    3,
                    dropout=0.5,
                    normalize_first=normalize_first,
                    dtype=policy,
                )
                for _ in range(2)
            ]

        def call(self, x, training=True):
            x = keras.random.dropout(x, 0.5) if training else x * 0.3 + x
            for encoder in self.encoders:
                x = encoder(x, training=training)
            return x

    model = Encoder()
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 5, 12)).astype("float32")
    model(values, training=False)
    randomize(model)
    report = attention_report(model, values)
    x = ops.convert_to_tensor(values, model.compute_dtype)
    x = x * 0.3 + x
    for number, encoder in enumerate(model.encoders):
        _, scores = encoder(x, return_attention_scores=True, training=False)
        x = encoder(x, training=False)
        np.testing.assert_allclose(
            [head.entropy for head in report.heads_of(number)],
            softmax_entropy(ops.cast(scores, "float32")),
            # the scores are rounded where the report's are not
            rtol=1e-4 if policy == "float32" else 0.02,
        )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="strings are TensorFlow's"
)
def test_strings_that_the_model_splits():
    words = keras.layers.TextVectorization(
        vocabulary=["a", "b"], output_sequence_length=4
    )
    texts = keras.Input((), dtype="string")
    x = keras.layers.Embedding(4, 6)(words(texts))
    model = keras.Model(texts, FixedMultiHeadAttention(2, head_size=3)(x))
    report = attention_report(model, np.array(["a b", "b"]))
    assert report == attention_report(
        keras.Model(x, model.output),
        model.layers[2](words(np.array(["a b", "b"]))),
    )
