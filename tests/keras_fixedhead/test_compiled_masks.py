"""Padding has no effect in compiled `predict` and `fit`, as in eager mode."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadCausalLM,
    FixedHeadMaskedLM,
    FixedHeadSpanLabeler,
    FixedHeadTextClassifier,
    FixedHeadTextEmbedder,
    FixedHeadTransformerBlock,
    FixedMultiHeadAttention,
)

B, T, PADDING, D, N, H = 2, 5, 3, 11, 3, 7


def self_attention(x, y):
    return FixedMultiHeadAttention(N, H)(x)


def self_attention_by_keyword(x, y):
    return FixedMultiHeadAttention(N, H)(query=x)


def self_attention_with_its_value(x, y):
    return FixedMultiHeadAttention(N, H)(x, x)


def causal_self_attention(x, y):
    return FixedMultiHeadAttention(N, H)(x, use_causal_mask=True)


def cross_attention(x, y):
    return FixedMultiHeadAttention(N, H)(y, x)


def half_precision(x, y):
    return FixedMultiHeadAttention(
        N, H, dtype="mixed_bfloat16", name="half_precision_attention"
    )(x)


def two_blocks(x, y):
    for _ in range(2):
        x = FixedHeadTransformerBlock(N, 13, head_size=H)(x)
    return x


FORMS = (
    self_attention,
    self_attention_by_keyword,
    self_attention_with_its_value,
    causal_self_attention,
    cross_attention,
    half_precision,
    two_blocks,
)


def half(variable):
    """Whether bfloat16 layers have a part in the variable's gradient."""
    return variable.path.startswith(("half_precision", "embedding"))


def ids(padding):
    """Ids `[B, T + padding]`, 0 in the padding."""
    rows = np.random.default_rng(0).integers(1, 6, (B, T))
    return np.pad(rows, ((0, 0), (0, padding)))


@pytest.fixture(scope="module")
def forms():
    """One model with an output for each form, and its initial weights."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((None,), dtype="int32")
    x, y = (
        keras.layers.Embedding(6, D, mask_zero=True)(inputs) for _ in range(2)
    )
    outputs = {
        form.__name__: keras.layers.GlobalAveragePooling1D(
            dtype="float32", name=form.__name__
        )(form(x, y))
        for form in FORMS
    }
    model = keras.Model(inputs, outputs)
    for i, variable in enumerate(model.weights):
        rng = np.random.default_rng(i)
        variable.assign(0.3 * rng.normal(size=variable.shape))
    model.compile(keras.optimizers.SGD(1.0), {name: "mse" for name in outputs})
    return model, model.get_weights()


def test_implicit_masks_in_predict(forms):
    model, _ = forms
    expected = model.predict(ids(0), verbose=0)
    padded = model.predict(ids(PADDING), verbose=0)
    for name in expected:
        tolerance = 0.02 if name == "half_precision" else 1e-5
        np.testing.assert_allclose(
            padded[name], expected[name], atol=tolerance, err_msg=name
        )


def test_implicit_masks_in_fit(forms):
    model, weights = forms
    labels = {name: np.ones((B, D), "float32") for name in model.output_names}
    after = []
    for padding in (0, PADDING):
        model.set_weights(weights)
        model.fit(ids(padding), labels, verbose=0)
        after.append([ops.convert_to_numpy(w) for w in model.weights])
    for variable, expected, padded, before in zip(
        model.weights, *after, weights
    ):
        exact = not half(variable)
        np.testing.assert_allclose(
            padded,
            expected,
            atol=1e-5 if exact else 0.02,
            err_msg=variable.path,
        )
        # A softmax ignores the biases of its keys.
        if exact and not variable.path.endswith("key/bias"):
            assert abs(expected - before).max() > 3e-5, variable.path


def classifier(backbone):
    return FixedHeadTextClassifier(
        backbone, 3, pooling_mode="mean", dropout=0.0
    )


@pytest.mark.parametrize(
    ("task", "loss", "labels"),
    [
        (FixedHeadTextEmbedder, "mse", np.ones((B, D))),
        (FixedHeadMaskedLM, "auto", np.array([[3, 1], [2, 4]])),
        (FixedHeadCausalLM, "auto", ids(0)),
        (classifier, "auto", np.array([2, 0])),
        (
            lambda backbone: FixedHeadSpanLabeler(backbone, dropout=0.0),
            "auto",
            {"start": np.array([1, 0]), "end": np.array([2, 4])},
        ),
    ],
    ids=["embedder", "masked_lm", "causal_lm", "classifier", "span_labeler"],
)
def test_padding_masks_of_tasks(task, loss, labels, make_backbone):
    model = task(
        make_backbone(
            num_layers=1, dropout=0.0, causal=task is FixedHeadCausalLM
        )
    )
    for i, variable in enumerate(model.weights):
        rng = np.random.default_rng(i)
        variable.assign(0.3 * rng.normal(size=variable.shape))
    weights = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), loss=loss)
    outputs, after = [], []
    for padding in (0, PADDING):
        inputs = {
            "token_ids": np.where(ids(padding) == 0, 9, ids(padding)),
            "segment_ids": np.zeros((B, T + padding), int),
            "padding_mask": (ids(padding) != 0).astype(int),
            "mask_positions": np.array([[1, 3], [0, 2]]),
        }
        inputs = {name: inputs[name] for name in model.input}
        given, sample_weight = labels, None
        if task is FixedHeadCausalLM:
            given = ids(padding)
            sample_weight = (given != 0).astype("float32")
        model.set_weights(weights)
        predicted = model.predict(inputs, verbose=0)
        if task is FixedHeadCausalLM:
            predicted = predicted[:, :T]
        if isinstance(predicted, dict):
            assert all((x[:, T:] == -1e9).all() for x in predicted.values())
            predicted = np.stack([x[:, :T] for x in predicted.values()])
        outputs.append(predicted)
        model.fit(
            inputs, given, sample_weight=sample_weight, shuffle=False, verbose=0
        )
        after.append(model.get_weights())
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-5)
    for variable, expected, padded in zip(model.weights, *after):
        np.testing.assert_allclose(
            padded, expected, atol=1e-5, err_msg=variable.path
        )
    assert any(abs(a - b).max() > 1e-3 for a, b in zip(after[0], weights))
