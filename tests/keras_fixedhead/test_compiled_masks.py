"""Masks that Keras hands on have their effect in compiled `predict` and `fit`.

`test_task.py` does the same with masks that a task takes as inputs.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTransformerBlock, FixedMultiHeadAttention

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
