"""Masks that Keras hands on have their effect in a compiled model.

`test_task.py` does the same with masks that a task takes as inputs.
"""

import keras
import numpy as np

from keras_fixedhead import FixedHeadTransformerBlock, FixedMultiHeadAttention

B, T, PADDING, D, N, H = 2, 5, 3, 11, 3, 7


def self_attention_by_keyword(x, y):
    return FixedMultiHeadAttention(N, H)(query=x)


def causal_self_attention(x, y):
    return FixedMultiHeadAttention(N, H)(x, use_causal_mask=True)


def cross_attention(x, y):
    return FixedMultiHeadAttention(N, H)(y, x)


def block(x, y):
    return FixedHeadTransformerBlock(N, 13, head_size=H)(x)


FORMS = (
    self_attention_by_keyword,
    causal_self_attention,
    cross_attention,
    block,
)


def ids(padding):
    """Ids `[B, T + padding]`, 0 in the padding."""
    rows = np.random.default_rng(0).integers(1, 6, (B, T))
    return np.pad(rows, ((0, 0), (0, padding)))


def test_implicit_masks():
    """One model with an output for each form."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((None,), dtype="int32")
    x, y = (
        keras.layers.Embedding(6, D, mask_zero=True)(inputs) for _ in range(2)
    )
    outputs = {
        form.__name__: keras.layers.GlobalAveragePooling1D(name=form.__name__)(
            form(x, y)
        )
        for form in FORMS
    }
    model = keras.Model(inputs, outputs)
    for i, variable in enumerate(model.weights):
        rng = np.random.default_rng(i)
        variable.assign(0.6 * rng.normal(size=variable.shape))
    whole, padded = (
        model.predict(ids(padding), verbose=0) for padding in (0, PADDING)
    )
    for name, expected in whole.items():
        np.testing.assert_allclose(
            padded[name], expected, atol=1e-5, err_msg=name
        )
