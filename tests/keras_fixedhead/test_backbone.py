"""The encoder against KerasHub's BERT, packed against padded."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadBackbone, FixedHeadTransformerBlock
from keras_fixedhead.convert import from_bert_backbone
from keras_fixedhead.packing import Packing
from tests import tiny_models


def test_equals_bert_with_its_weights(inputs, vocabulary):
    bert = keras_hub.models.BertBackbone(
        vocabulary_size=len(vocabulary),
        num_layers=2,
        num_heads=3,
        hidden_dim=21,
        intermediate_dim=23,
        max_sequence_length=17,
    )
    for i, variable in enumerate(bert.trainable_variables):
        noise = np.random.default_rng(i).normal(size=variable.shape)
        variable.assign_add(0.1 * noise)
    ours = from_bert_backbone(bert)
    assert ours.count_params() == bert.count_params()
    expected, outputs = bert(inputs), ours(inputs)
    real = inputs["padding_mask"] == 1
    np.testing.assert_allclose(
        ops.convert_to_numpy(outputs["sequence_output"])[real],
        ops.convert_to_numpy(expected["sequence_output"])[real],
        atol=1e-5,
    )
    some = real.any(1)
    np.testing.assert_allclose(
        ops.convert_to_numpy(outputs["pooled_output"])[some],
        ops.convert_to_numpy(expected["pooled_output"])[some],
        atol=1e-5,
    )


@pytest.mark.any_backend
def test_from_bert_backbone_takes_only_bert(make_backbone):
    with pytest.raises(ValueError, match="BertBackbone"):
        from_bert_backbone(make_backbone())


def test_packing_there_and_back():
    mask = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]])
    x = np.arange(18.0).reshape(3, 3, 2)
    packing = Packing(mask)
    packed = packing.pack(x)
    np.testing.assert_array_equal(packed, x[mask == 1])
    np.testing.assert_array_equal(packing.pad(packed), x * mask[..., None])


def test_packing_of_a_fixed_size_keeps_the_padding():
    x = np.arange(12.0).reshape(2, 3, 2)
    packing = Packing(np.array([[1, 0, 1], [0, 0, 1]]), fixed_size=True)
    packed = packing.pack(x)
    np.testing.assert_array_equal(packed, x.reshape(6, 2))
    np.testing.assert_array_equal(packing.pad(packed), x)


@pytest.mark.parametrize("fixed_size", [False, True])
def test_packing_takes_positions_of_the_padded_batch(fixed_size):
    x = np.arange(18.0).reshape(3, 3, 2)
    packing = Packing(np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]]), fixed_size)
    taken = packing.take(packing.pack(x), np.array([[1, 0], [2, 0], [2, 1]]))
    np.testing.assert_array_equal(
        taken, x[np.arange(3)[:, None], [[1, 0], [2, 0], [2, 1]]]
    )


def block_and_packed(inputs, **arguments):
    packing = Packing(inputs["padding_mask"])
    block = FixedHeadTransformerBlock(3, 23, head_size=5, **arguments)
    block.build((None, None, 11))
    return block, packing.pack(np.ones((5, 13, 11), "float32")), packing


@pytest.mark.any_backend
def test_packing_with_another_mask_is_an_error(inputs):
    block, x, packing = block_and_packed(inputs)
    assert block(x, packing=packing).shape == x.shape
    with pytest.raises(ValueError, match="without value_mask"):
        block(x, padding_mask=inputs["padding_mask"], packing=packing)
    with pytest.raises(ValueError, match="without cache"):
        cache = np.zeros((5, 2, 13, 15), "float32")
        block(x, packing=packing, cache=cache, cache_update_index=0)


@pytest.mark.any_backend
def test_queries_of_a_packing_need_what_they_attend_to(inputs):
    block, x, packing = block_and_packed(inputs)
    with pytest.raises(ValueError, match="`query_packing` needs `packing`"):
        block(x, query_packing=packing)
    queries = {"queries": x, "query_packing": packing}
    with pytest.raises(ValueError, match="packing=None"):
        block(x, **queries)
    with pytest.raises(ValueError, match="use_causal_mask=True"):
        block(x, packing=packing, use_causal_mask=True, **queries)
    windowed, x, packing = block_and_packed(inputs, attention_window=2)
    with pytest.raises(ValueError, match="attention_window=2"):
        windowed(x, packing=packing, **queries)


@pytest.mark.any_backend
@pytest.mark.parametrize("padding", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_equals_padded(make_backbone, inputs, causal, padding):
    backbone = make_backbone(num_layers=3, head_size=[2, 3, 5], causal=causal)
    if not padding:
        inputs["padding_mask"][:] = 1
    real = inputs["padding_mask"] == 1
    padded = ops.convert_to_numpy(backbone(inputs)["sequence_output"])
    tensors = tiny_models.tensors(inputs)
    packed, packing = backbone.encode_packed(tensors)
    assert packed.shape == (real.sum(), 11)
    np.testing.assert_allclose(packed, padded[real], atol=1e-5)
    np.testing.assert_allclose(
        ops.convert_to_numpy(packing.pad(packed))[real], packed
    )


@pytest.mark.parametrize("padding", [True, False])
def test_nothing_is_packed_where_nothing_is_padded(
    make_backbone, inputs, monkeypatch, padding
):
    if not padding:
        inputs["padding_mask"][:] = 1
    tensors = tiny_models.tensors(inputs)
    backbone = make_backbone()
    gathered = []
    monkeypatch.setattr(
        "keras_fixedhead.packing.ops.scatter",
        lambda *args: (
            gathered.append(args)
            or ops.scatter_update(ops.zeros(args[2], args[1].dtype), *args[:2])
        ),
    )
    backbone.encode_packed(tensors)
    assert bool(gathered) == padding


@pytest.mark.any_backend
@pytest.mark.parametrize("fixed_size", [False, True])
@pytest.mark.parametrize(
    "arguments", [{}, {"attention_window": 3}, {"causal": True}], ids=str
)
@pytest.mark.parametrize("some", [False, True])
def test_positions_equal_padded(
    make_backbone, inputs, fixed_size, arguments, some
):
    backbone = make_backbone(**arguments)
    rows = np.array([0, 3, 4])  # those of at least 5 tokens
    tensors = {k: ops.convert_to_tensor(v[rows]) for k, v in inputs.items()}
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
    np.testing.assert_allclose(
        ops.convert_to_numpy(packing.pad(x)), expected, atol=1e-5
    )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="sizes that depend on data: TensorFlow graphs only",
)
@pytest.mark.parametrize(
    "jit_compile", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_packed_gradients_in_a_graph(make_backbone, inputs, jit_compile):
    import tensorflow as tf

    backbone = make_backbone(dropout=0.0)
    tensors = {k: tf.constant(v, tf.int32) for k, v in inputs.items()}

    def gradients(packed):
        @tf.function(jit_compile=jit_compile and packed)
        def step():
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

        return step()

    for ours, plain in zip(gradients(True), gradients(False)):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


def test_padding_does_not_matter(make_backbone, inputs):
    backbone = make_backbone(attention_window=3)
    changed = dict(inputs)
    real = inputs["padding_mask"] == 1
    changed["token_ids"] = np.where(real, inputs["token_ids"], 1)
    before, after = (
        ops.convert_to_numpy(backbone(x)["sequence_output"])
        for x in (inputs, changed)
    )
    np.testing.assert_allclose(after[real], before[real], atol=1e-6)
    assert np.isfinite(after).all()


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
            ops.convert_to_numpy(backbone(x)["sequence_output"])
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
def test_a_causal_backbone_has_no_pooler(make_backbone):
    with pytest.raises(ValueError, match="`causal=True`.*pooler=True"):
        make_backbone(causal=True, pooler=True)


@pytest.mark.any_backend
def test_head_size(make_backbone):
    def sizes(backbone):
        return [
            layer.attention.head_size for layer in backbone.transformer_layers
        ]

    assert sizes(make_backbone(head_size=None)) == [17, 17]
    assert sizes(make_backbone(head_size=[5, 7])) == [5, 7]
    with pytest.raises(ValueError, match=r"2 layers.*head_size=\[5\]"):
        make_backbone(head_size=[5])
    with pytest.raises(ValueError, match="head_size=0"):
        make_backbone(head_size=0)


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


def test_activation_variants_differ(make_backbone, inputs):
    backbones = [
        make_backbone(activation=activation)
        for activation in ("gelu", "gelu_approximate", "relu")
    ]
    outputs = []
    for backbone in backbones:
        backbone.set_weights(backbones[0].get_weights())
        x = backbone(inputs)["sequence_output"]
        outputs.append(ops.convert_to_numpy(x))
    exact, approximate, relu = outputs
    assert 0 < abs(exact - approximate).max() < 0.01
    assert abs(exact - relu).max() > abs(exact - approximate).max()


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
    def test_causal(self):
        block = FixedHeadTransformerBlock(3, 23, head_size=5)
        x = np.random.default_rng(0).normal(size=(2, 7, 11))
        before = ops.convert_to_numpy(block(x, use_causal_mask=True))
        x[:, 4:] += 1.0
        after = ops.convert_to_numpy(block(x, use_causal_mask=True))
        np.testing.assert_allclose(after[:, :4], before[:, :4], atol=1e-5)
        assert abs(after[:, 4:] - before[:, 4:]).max() > 0.01

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

    # Keras warns of every layer that has nothing to quantize.
    @pytest.mark.any_backend
    @pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
    def test_int8_round_trip(self, tmp_path):
        inputs = keras.Input((7, 11))
        outputs = FixedHeadTransformerBlock(3, 23)(inputs)
        model = keras.Model(inputs, outputs)
        model.quantize("int8")
        model.save(tmp_path / "int8.keras")
        again = keras.models.load_model(tmp_path / "int8.keras")
        x = np.random.default_rng(0).normal(size=(2, 7, 11))
        np.testing.assert_allclose(again(x), model(x), atol=1e-6)


@pytest.mark.any_backend
def test_unknown_argument_is_an_error(make_backbone):
    with pytest.raises(
        TypeError, match="Backbone has no argument `head_sizes`"
    ):
        make_backbone(head_sizes=7)
