"""The layer's arguments: what they make, what is saved, what is refused."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTransformerBlock, FixedMultiHeadAttention
from tests.keras_fixedhead.attention_inputs import SIZES, normal

B, T, S, D, E, N, H = SIZES


def test_head_size_is_the_sequence_length_and_stays_it():
    inputs = keras.Input((T, 32))
    model = keras.Model(inputs, FixedMultiHeadAttention(7)(inputs))
    layer = model.layers[-1]
    assert layer.head_size == T
    assert layer.query.kernel.shape == (32, 7 * T)
    again = FixedMultiHeadAttention.from_config(layer.get_config())
    again.build((None, 2 * T, 32))
    assert again.head_size == T


def test_unknown_length_without_head_size_is_an_error():
    with pytest.raises(ValueError, match="Pass `head_size`"):
        FixedMultiHeadAttention(N)(keras.Input((None, D)))


def test_saved_layout():
    """What files hold: it is never to change."""
    layer = FixedMultiHeadAttention(N, H, name="a")
    layer.build((B, T, D), (B, S, E), (B, S, 19))
    assert {w.path: w.shape for w in layer.weights} == {
        "a/query/kernel": (D, N * H),
        "a/query/bias": (N * H,),
        "a/key/kernel": (19, N * H),
        "a/key/bias": (N * H,),
        "a/value/kernel": (E, N * H),
        "a/value/bias": (N * H,),
        "a/attention_output/kernel": (N * H, D),
        "a/attention_output/bias": (D,),
    }


def test_every_option_survives_get_config():
    arguments = dict(
        num_heads=N,
        head_size=[2, 3, 5],
        attention_window=4,
        attention_scale=0.3,
        dropout=0.25,
        use_bias=False,
        output_dim=19,
        kernel_initializer=keras.initializers.HeNormal(seed=3),
        bias_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer=keras.regularizers.L1(0.2),
        kernel_constraint=keras.constraints.NonNeg(),
        bias_constraint=keras.constraints.UnitNorm(),
        seed=5,
        name="a",
        dtype="mixed_bfloat16",
        trainable=False,
    )
    layer = FixedMultiHeadAttention(**arguments)
    config = layer.get_config()
    assert set(config) == set(arguments)
    for name, value in arguments.items():
        if isinstance(value, (int, float, list)):
            assert config[name] == value
    again = FixedMultiHeadAttention.from_config(config)
    assert again.get_config() == config
    assert again.kernel_regularizer.l2 == pytest.approx(0.1)


def test_symbolic_shapes_with_scores():
    layer = FixedMultiHeadAttention(N, H, output_dim=19)
    output, scores = layer(
        keras.Input((T, D)), keras.Input((S, E)), return_attention_scores=True
    )
    assert output.shape == (None, T, 19)
    assert scores.shape == (None, N, T, S)
    assert layer.compute_output_shape((B, T, D)) == (B, T, 19)
    block = FixedHeadTransformerBlock(N, 23)
    output, scores = block(keras.Input((T, D)), return_attention_scores=True)
    assert (output.shape, scores.shape) == ((None, T, D), (None, N, T, T))


def test_lora(tmp_path):
    inputs = keras.Input((T, D))
    layer = FixedMultiHeadAttention(N, [2, 3, 5])
    model = keras.Model(inputs, layer(inputs))
    x = normal(B, T, D)
    before = ops.convert_to_numpy(model(x))
    for projection in (layer.query, layer.value):
        projection.enable_lora(2)
    np.testing.assert_allclose(model(x), before, atol=1e-6)
    layer.query.lora_kernel_b.assign(normal(2, sum(layer.head_sizes)))
    after = ops.convert_to_numpy(model(x))
    assert abs(after - before).max() > 1e-3
    model.save(tmp_path / "lora.keras")
    again = keras.models.load_model(tmp_path / "lora.keras")
    np.testing.assert_allclose(again(x), after, atol=1e-5)


# Keras warns of every layer that has nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_int8(tmp_path):
    """Of the layer, and of the block around another."""
    inputs = keras.Input((T, D))
    layer = FixedMultiHeadAttention(N, [2, 3, 5])
    block = FixedHeadTransformerBlock(N, 23)
    model = keras.Model(inputs, block(layer(inputs)))
    x = normal(B, T, D)
    before = ops.convert_to_numpy(model(x))
    model.quantize("int8")
    assert layer.query.kernel.dtype == "int8"
    after = ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(after, before, atol=0.1)
    model.save(tmp_path / "int8.keras")
    again = keras.models.load_model(tmp_path / "int8.keras")
    np.testing.assert_allclose(again(x), after, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "num_heads=0"),
        ({"head_size": [2, 3]}, r"3 heads.*head_size=\[2, 3\]"),
        ({"head_size": [2, 3, -1]}, "head_size=-1"),
        ({"attention_window": 0}, "attention_window=0"),
        ({"attention_scale": float("nan")}, "`attention_scale`.*nan"),
        ({"output_dim": 1.5}, "output_dim=1.5"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        FixedMultiHeadAttention(**{"num_heads": 3, "head_size": H, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_dim": 64}, "`key_dim`. Pass `head_size`. .*key_dim=64"),
        ({"flash_attention": True}, "Leave it out"),
    ],
    ids=str,
)
def test_arguments_of_keras_layer_point_to_ours(arguments, message):
    with pytest.raises(TypeError, match=message):
        FixedMultiHeadAttention(3, **arguments)


def test_bad_rank():
    with pytest.raises(ValueError, match=r"`query`.* rank 3.*\(5, 11\)"):
        FixedMultiHeadAttention(N, H)(normal(T, D))
