"""Models whose attention layers are swapped compute what they did."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedMultiHeadAttention
from keras_fixedhead.convert import swap_attention
from tests.tiny_models import randomize

IDS = np.array([[1, 2, 3, 0, 0], [4, 1, 2, 3, 1]])


def nested_model():
    """Two uses of one layer, a model in the model, masks, sums of tensors."""
    x = keras.Input((None, 11))
    attention = keras.layers.MultiHeadAttention(2, 3, dropout=0.2, name="two")
    inner = keras.Model(x, attention(x, x, use_causal_mask=True), name="inner")
    ids = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(6, 11, mask_zero=True)
    # Keras's layer takes the mask off its inputs: each is used once.
    x, z, last = embedding(ids), embedding(ids), embedding(ids)
    shared = keras.layers.MultiHeadAttention(3, 5, name="shared")
    y = keras.layers.LayerNormalization()(x + shared(x, x))
    y = shared(y, z) + inner(y)
    y, scores = keras.layers.MultiHeadAttention(
        2, 7, sliding_window=2, trainable=False
    )(y, value=last, key=y, return_attention_scores=True)
    mean = keras.layers.GlobalAveragePooling1D()(y)
    return randomize(keras.Model(ids, [mean, scores]), scale=0.5)


def attention_layers(model):
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, FixedMultiHeadAttention)
    ]


@pytest.mark.parametrize("head_size", [None, 13])
def test_outputs_stay(head_size, tmp_path):
    model = nested_model()
    swapped = swap_attention(model, head_size)
    assert not any(
        isinstance(layer, keras.layers.MultiHeadAttention)
        for layer in swapped._flatten_layers()
    )
    sizes = {layer.name: layer.head_size for layer in attention_layers(swapped)}
    assert sorted(sizes.values()) == (
        [head_size] * 3 if head_size else [3, 5, 7]
    )
    assert sizes["shared"] == (head_size or 5)
    expected = [ops.convert_to_numpy(x) for x in model(IDS)]
    for x, y in zip(swapped(IDS), expected):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert len(swapped.trainable_weights) == len(model.trainable_weights)
    swapped.save(tmp_path / "swapped.keras")
    again = keras.models.load_model(tmp_path / "swapped.keras")
    for x, y in zip(again(IDS), expected):
        np.testing.assert_allclose(x, y, atol=1e-5)
    # The copy has weights of its own.
    for variable in swapped.weights:
        variable.assign(np.zeros(variable.shape))
    for x, y in zip(model(IDS), expected):
        np.testing.assert_array_equal(x, y)


def test_sequential_and_compiled():
    x = keras.Input((5, 7))
    model = keras.Sequential(
        [
            keras.Input((5, 11)),
            keras.layers.Dense(7),
            keras.Model(x, keras.layers.MultiHeadAttention(2, 3)(x, x[:, :2])),
        ]
    )
    model.compile("sgd", "mse")
    swapped = swap_attention(model, 17)
    x = np.random.default_rng(0).normal(size=(2, 5, 11)).astype("float32")
    np.testing.assert_allclose(swapped(x), model(x), atol=1e-5)
    assert swapped.fit(x, x[..., :7], verbose=0).history["loss"][0] > 0


def test_what_cannot_be_swapped_is_named():
    x = keras.Input((5, 11))
    encoder = keras_hub.layers.TransformerEncoder(13, 1, name="block")
    with pytest.raises(ValueError, match="'self_attention_layer'.* in 'block'"):
        swap_attention(keras.Model(x, encoder(x)))
    with pytest.raises(ValueError, match="with a keras.layers.MultiHead"):
        swap_attention(keras.Model(x, keras.layers.Dense(3)(x)))
    layer = keras.layers.MultiHeadAttention(2, 3, use_gate=True)
    with pytest.raises(ValueError, match="use_gate=True"):
        swap_attention(keras.Model(x, layer(x, x)))
    with pytest.raises(ValueError, match="at least 5.*head_size=2"):
        swap_attention(nested_model(), 2)
