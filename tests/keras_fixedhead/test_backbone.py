"""The encoder against KerasHub's BERT, packed against padded."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadBackbone, FixedHeadTransformerBlock
from keras_fixedhead.convert import from_bert_backbone
from keras_fixedhead.packing import Packing
from tests import tiny_models


def test_equals_bert_with_its_weights(inputs, vocabulary):
    bert = tiny_models.new_bert(len(vocabulary), hidden_dim=21)
    tiny_models.add_noise(bert)
    ours = from_bert_backbone(bert)
    assert ours.count_params() == bert.count_params()
    found, expected = (
        tiny_models.real(model(inputs), inputs) for model in (ours, bert)
    )
    tiny_models.assert_close(found, expected, atol=1e-5)


@pytest.mark.any_backend
def test_from_bert_backbone_takes_only_bert(make_backbone):
    with pytest.raises(ValueError, match="BertBackbone"):
        from_bert_backbone(make_backbone())


@pytest.mark.parametrize("fixed_size", [False, True])
def test_packing(fixed_size):
    mask = np.array([[1, 1, 0], [1, 0, 1], [0, 0, 0]])
    x = np.arange(18.0).reshape(3, 3, 2)
    packing = Packing(mask, fixed_size)
    packed = packing.pack(x)
    kept = np.ones_like(mask) if fixed_size else mask
    np.testing.assert_array_equal(packed, x[kept == 1])
    np.testing.assert_array_equal(packing.pad(packed), x * kept[..., None])
    positions = np.array([[1, 0], [2, 0], [0, 0]])
    np.testing.assert_array_equal(
        packing.take(packed, positions)[:2],
        x[np.arange(2)[:, None], positions[:2]],
    )


@pytest.mark.any_backend
def test_what_a_packing_excludes(inputs):
    packing = Packing(inputs["padding_mask"])
    x = packing.pack(np.ones((5, 13, 11), "float32"))
    block, windowed = (
        FixedHeadTransformerBlock(3, 23, head_size=5, attention_window=window)
        for window in (None, 2)
    )
    for each in (block, windowed):
        each.build((None, None, 11))
    assert block(x, packing=packing).shape == x.shape
    mask = inputs["padding_mask"]
    with pytest.raises(ValueError, match="combined with value_mask"):
        block(x, padding_mask=mask, packing=packing)
    queries = {"queries": x, "query_packing": packing}
    for layer, arguments, message in (
        (block, {}, "packing=None"),
        (block, {"packing": packing, "use_causal_mask": True}, "no causal"),
        (windowed, {"packing": packing}, "no window"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(x, **queries, **arguments)


@pytest.mark.any_backend
@pytest.mark.parametrize(("fixed_size", "some"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    "arguments", [{}, {"attention_window": 3}, {"causal": True}], ids=str
)
def test_positions_equal_padded(
    make_backbone, inputs, fixed_size, arguments, some
):
    backbone = make_backbone(**arguments)
    rows = np.array([0, 3, 4])  # those of at least 5 tokens
    tensors = tiny_models.tensors({k: x[rows] for k, x in inputs.items()})
    positions = np.array([[12, 0], [4, 4], [7, 1]])
    real = np.array([[1, 1], [0, 1], [0, 0]], "bool")
    padded = ops.convert_to_numpy(backbone(tensors)["sequence_output"])
    expected = padded[np.arange(3)[:, None], positions]
    x, packing = backbone.encode_positions(
        tensors,
        ops.convert_to_tensor(positions),
        real=ops.convert_to_tensor(real) if some else None,
        fixed_size=fixed_size,
    )
    if some:
        assert x.shape == (3, 11)
        expected = expected * real[..., None]
    tiny_models.assert_close(packing.pad(x), expected, atol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="sizes that depend on data: TensorFlow graphs only",
)
def test_packed_gradients_in_a_graph(make_backbone, inputs):
    import tensorflow as tf

    backbone = make_backbone(dropout=0.0, num_layers=1)
    tensors = {k: tf.constant(v, tf.int32) for k, v in inputs.items()}

    def gradients(packed):
        with tf.GradientTape() as tape:
            if packed:
                x, packing = backbone.encode_packed(tensors, training=True)
                x = packing.pad(x)
            else:
                x = backbone(tensors, training=True)["sequence_output"]
            mask = tf.cast(tensors["padding_mask"], x.dtype)[..., None]
            loss = tf.reduce_sum(tf.sin(x) * mask)
        variables = [v.value for v in backbone.trainable_variables]
        found = tape.gradient(loss, variables)
        return [tf.convert_to_tensor(gradient) for gradient in found]

    compiled = tf.function(gradients, jit_compile=True)
    for ours, plain in zip(compiled(True), gradients(False)):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.any_backend
def test_causal(make_backbone, inputs):
    """What comes later changes nothing, and is not needed."""
    both, causal = make_backbone(), make_backbone(causal=True)
    causal.set_weights(both.get_weights())
    later = {**inputs, "token_ids": inputs["token_ids"].copy()}
    later["token_ids"][:, 7:] = 3
    first = {name: x[:, :7] for name, x in inputs.items()}
    for backbone in (both, causal):
        x, changed, alone = (
            tiny_models.as_numpy(backbone(x)["sequence_output"])
            for x in (inputs, later, first)
        )
        assert abs(changed - x)[0, 7:].max() > 0.01
        if backbone is causal:
            np.testing.assert_allclose(changed[:, :7], x[:, :7], atol=1e-6)
            np.testing.assert_allclose(alone, x[:, :7], atol=1e-6)
        else:
            assert abs(changed - x)[0, :7].max() > 1e-4


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("name", "value"), [("causal", False), ("attention_scale", None)]
)
def test_a_configuration_from_before_there_was(make_backbone, name, value):
    config = make_backbone().get_config()
    assert config.pop(name) is value
    again = FixedHeadBackbone.from_config(config)
    assert again.get_config() == {**config, name: value}


@pytest.mark.any_backend
def test_head_size(make_backbone):
    for given, sizes in ((None, [17, 17]), ([5, 7], [5, 7])):
        assert [
            layer.head_size
            for layer in make_backbone(head_size=given).transformer_layers
        ] == sizes


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"causal": True, "pooler": True}, ValueError, "pooler=True"),
        ({"head_size": [5]}, ValueError, r"2 layers.*head_size=\[5\]"),
        ({"head_size": 0}, ValueError, "head_size=0"),
        ({"head_sizes": 7}, TypeError, "has no argument `head_sizes`"),
    ],
    ids=str,
)
def test_bad_arguments(make_backbone, arguments, error, message):
    with pytest.raises(error, match=message):
        make_backbone(**arguments)


@pytest.mark.any_backend
@pytest.mark.parametrize("last", ["pooler", "causal"])
def test_every_option_survives_get_config(make_backbone, last):
    options = {
        "head_size": [5, 7],
        "attention_window": 3,
        "attention_scale": 0.3,
        "dropout": 0.3,
        "num_segments": 4,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
        "name": "encoder",
        last: True,
    }
    backbone = make_backbone(dtype="mixed_bfloat16", **options)
    config = backbone.get_config()
    assert options.items() <= config.items()
    again = FixedHeadBackbone.from_config(config)
    assert again.get_config() == config
    assert again.dtype_policy.name == "mixed_bfloat16"
    for layer in again.transformer_layers:
        assert layer.get_config()["attention_scale"] == 0.3
        assert layer.attention.attention_scale == 0.3
    assert [w.shape for w in again.weights] == [
        w.shape for w in backbone.weights
    ]


@pytest.mark.any_backend
def test_lora(make_backbone):
    backbone = make_backbone()
    backbone.enable_lora(2)
    paths = [v.path.split("/") for v in backbone.trainable_variables]
    assert {tuple(p[-3:-1]) for p in paths if "lora" in p[-1]} == {
        ("attention", "query"),
        ("attention", "value"),
    }


class TestBlock:
    def test_symbolic_cache(self):
        inputs, cache = keras.Input((3, 11)), keras.Input((2, 7, 15))
        outputs = FixedHeadTransformerBlock(3, 23, head_size=5)(
            inputs, use_causal_mask=True, cache=cache, cache_update_index=2
        )
        assert [x.shape for x in outputs] == [(None, 3, 11), (None, 2, 7, 15)]
        model = keras.Model([inputs, cache], outputs)
        arrays = [np.ones((2, 3, 11)), np.zeros((2, 2, 7, 15))]
        changed = abs(ops.convert_to_numpy(model(arrays)[1])).max((0, 1, 3)) > 0
        assert changed.nonzero()[0].tolist() == [2, 3, 4]

    def test_stacks_and_round_trips(self, tmp_path):
        inputs = keras.Input((7, 11))
        x = FixedHeadTransformerBlock(3, 23)(inputs)
        outputs = FixedHeadTransformerBlock(
            3, 23, head_size=[2, 3, 5], activation="relu", dropout=0.1
        )(x)
        model = keras.Model(inputs, outputs)
        assert model.layers[1].head_size == 7
        model.save(tmp_path / "blocks.keras")
        again = keras.models.load_model(tmp_path / "blocks.keras")
        x = np.random.default_rng(0).normal(size=(2, 7, 11))
        np.testing.assert_allclose(again(x), model(x), atol=1e-6)
