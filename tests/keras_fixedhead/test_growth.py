"""Growth: equal outputs with random weights, and what training changes."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadCausalLM,
    FixedHeadMaskedLM,
    FixedHeadTextEmbedder,
)
from keras_fixedhead.growth import (
    drop_layers,
    grow_head_size,
    grow_heads,
    grow_positions,
    output_change,
)
from tests.tiny_models import assert_close, randomize, real

GROWTHS = {
    "head_size": lambda model: grow_head_size(model, 19),
    "head_size_per_layer": lambda model: grow_head_size(model, [7, 13]),
    "heads": lambda model: grow_heads(model, 5),
    "positions": lambda model: grow_positions(model, 41),
}
BACKBONES = {
    "head_size": {},
    "head_size_per_layer": {"head_size": [5, 7]},
    "head_size_per_head": {"head_size": [[2, 3, 5], 7]},
    "head_size_of_positions": {"head_size": None},
    "window_and_scale": {
        "attention_window": 3,
        "attention_scale": 0.3,
        "pooler": True,
        "activation": "gelu",
    },
}


def numpy_weights(model):
    return [ops.convert_to_numpy(weight).copy() for weight in model.weights]


def assert_same_outputs(after, before, inputs, atol):
    expected = real(before(inputs), inputs)
    assert all(np.std(x) > 0.01 for x in keras.tree.flatten(expected))
    assert_close(real(after(inputs), inputs), expected, atol=atol)


@pytest.fixture(scope="module")
def backbone(make_backbone):
    """What no test changes."""
    return make_backbone()


@pytest.fixture
def masked_lm(make_task):
    return make_task(
        FixedHeadMaskedLM,
        backbone={"pooler": True, "num_layers": 3},
        next_sentence=True,
    )


@pytest.mark.any_backend
@pytest.mark.parametrize("arguments", BACKBONES.values(), ids=BACKBONES)
@pytest.mark.parametrize("growth", GROWTHS)
def test_backbone_computes_the_same(
    float64, make_backbone, inputs, growth, arguments
):
    head_size = arguments.get("head_size", 7)
    if head_size is None and growth == "head_size_per_layer":
        pytest.skip("the heads are larger")
    if head_size == [[2, 3, 5], 7] and growth == "heads":
        pytest.skip("one size per head fits no more heads")
    backbone = randomize(make_backbone(dtype="float64", **arguments))
    weights = numpy_weights(backbone)
    grown = GROWTHS[growth](backbone)
    assert type(grown) is FixedHeadBackbone
    assert grown.count_params() > backbone.count_params()
    assert_same_outputs(grown, backbone, inputs, 1e-12)
    for now, then in zip(numpy_weights(backbone), weights):
        np.testing.assert_array_equal(now, then)


@pytest.mark.any_backend
def test_language_model_continues_texts_the_same(make_backbone, inputs):
    model = randomize(FixedHeadCausalLM(make_backbone(causal=True)))
    grown = grow_heads(grow_head_size(model, [7, 13]), 5)
    token_ids = inputs["token_ids"][:, :7]
    given = np.broadcast_to(np.arange(7) < 4, token_ids.shape)
    prompts = {"token_ids": token_ids, "padding_mask": given}
    for each in (model, grown):
        each.compile(sampler="greedy", run_eagerly=True)
    expected, got = (
        each.generate(prompts, stop_token_ids=None)["token_ids"]
        for each in (model, grown)
    )
    assert (expected[:, 4:] != token_ids[:, 4:]).any()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.any_backend
@pytest.mark.parametrize("growth", GROWTHS)
def test_what_is_not_grown_stays(make_backbone, growth):
    backbone = make_backbone(
        dropout=0.3,
        num_segments=4,
        attention_window=3,
        attention_scale=0.3,
        activation="gelu",
        layer_norm_epsilon=1e-5,
        pooler=True,
        dtype="mixed_bfloat16",
        name="encoder",
    )
    grown = GROWTHS[growth](backbone)
    changed = {
        "head_size": {"head_size": 19},
        "head_size_per_layer": {"head_size": [7, 13]},
        "heads": {"num_heads": 5},
        "positions": {"max_sequence_length": 41},
    }[growth]
    assert grown.get_config() == {**backbone.get_config(), **changed}
    assert [w.path for w in grown.weights] == [w.path for w in backbone.weights]


@pytest.mark.any_backend
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_bfloat16(make_backbone, inputs, dtype):
    backbone = randomize(make_backbone(dtype=dtype))
    # 28 = 4 * 7: the scale is 2, exact in any dtype.
    grown = grow_head_size(backbone, 28)
    assert [w.dtype for w in grown.weights] == [
        w.dtype for w in backbone.weights
    ]
    # Sums of more products are rounded in another order.
    assert output_change(backbone, grown, inputs).mean_cosine > 0.999


@pytest.mark.any_backend
def test_frozen_layers_stay_frozen(masked_lm):
    masked_lm.backbone.token_embedding.trainable = False
    masked_lm.backbone.transformer_layers[1].trainable = False
    masked_lm.backbone.transformer_layers[0].attention.key.trainable = False
    grown = grow_heads(masked_lm, 5)
    assert [v.path for v in grown.trainable_variables] == [
        v.path for v in masked_lm.trainable_variables
    ]
    assert 0 < len(grown.trainable_variables) < len(grown.weights)
    dropped = drop_layers(masked_lm, [0])
    assert not dropped.backbone.transformer_layers[0].trainable
    masked_lm.backbone.trainable = False
    assert not grow_heads(masked_lm, 5).backbone.trainable
    masked_lm.backbone.transformer_layers[0].trainable = True
    grown = grow_heads(masked_lm, 5)
    assert [v.path for v in grown.trainable_variables] == [
        v.path for v in masked_lm.trainable_variables
    ]


@pytest.mark.any_backend
def test_what_is_new_is_small_random_and_seeded(make_backbone):
    backbone = randomize(make_backbone())

    def new_columns(seed):
        grown = grow_head_size(backbone, 101, seed=seed)
        attention = grown.transformer_layers[1].attention
        kernels = [
            ops.convert_to_numpy(kernel).reshape(11, 3, 101)
            for kernel in (attention.key.kernel, attention.value.kernel)
        ]
        return np.concatenate(kernels)[..., 7:]

    new = new_columns(1)
    assert 0.035 < abs(new).max() <= 0.04
    assert abs(new.std() - 0.0176) < 0.0005  # a normal's, cut at two of them
    assert len(np.unique(new)) > 0.95 * new.size
    np.testing.assert_array_equal(new_columns(1), new)
    assert (new_columns(2) != new).mean() > 0.95


@pytest.mark.any_backend
def test_positions_repeat_the_old_table(make_backbone):
    backbone = make_backbone(head_size=None)
    grown = grow_positions(backbone, 41)
    old, new = (
        ops.convert_to_numpy(model.position_embedding.position_embeddings)
        for model in (backbone, grown)
    )
    assert new.shape == (41, 11)
    np.testing.assert_array_equal(new, old[np.arange(41) % 17])
    # Not the new length: the heads would be others.
    assert grown.head_size == 17
    longer = dict.fromkeys(backbone.input, np.ones((2, 41), "int32"))
    assert grown(longer)["sequence_output"].shape == (2, 41, 11)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("head_size", "left"), [(7, 7), (None, None), ([3, 5, 7, 2], [3, 7])]
)
def test_dropped_layers(make_backbone, inputs, head_size, left):
    backbone = randomize(make_backbone(num_layers=4, head_size=head_size))
    dropped = drop_layers(backbone, [3, 1])
    assert (dropped.num_layers, dropped.head_size) == (2, left)
    # The oracle: blocks that do nothing but hand on.
    kept = [backbone.transformer_layers[i] for i in (0, 2)]
    x = backbone.get_layer("embeddings_dropout").output
    for layer in kept:
        x = layer(x, padding_mask=backbone.input["padding_mask"])
    expected = keras.Model(backbone.input, {"sequence_output": x})
    assert_same_outputs(dropped, expected, inputs, 1e-5)
    assert len(backbone.transformer_layers) == 4


@pytest.mark.any_backend
def test_dropped_layers_of_a_task(masked_lm, masked_inputs):
    randomize(masked_lm)
    dropped = drop_layers(masked_lm, (1,))
    assert dropped.backbone.num_layers == 2
    for ours, theirs in (
        (dropped.masked_lm_head, masked_lm.masked_lm_head),
        (dropped.next_sentence_dense, masked_lm.next_sentence_dense),
        (
            dropped.backbone.transformer_layers[1],
            masked_lm.backbone.transformer_layers[2],
        ),
    ):
        for weight, expected in zip(numpy_weights(ours), numpy_weights(theirs)):
            np.testing.assert_array_equal(weight, expected)
    assert output_change(masked_lm, dropped, masked_inputs).mean_cosine < 0.99


@pytest.mark.any_backend
def test_output_change(make_embedder, inputs):
    before, after = make_embedder(), make_embedder()
    real = inputs["padding_mask"] == 1

    def tokens(model):
        return model(inputs)["sequence_output"]

    for models, outputs, chosen in (
        ((before, after), lambda model: model(inputs), real.any(1)),
        ((before.backbone, after.backbone), tokens, real),
    ):
        change = output_change(*models, inputs, batch_size=2)
        x, y = (ops.convert_to_numpy(outputs(m))[chosen] for m in models)
        largest = abs(x - y).max()
        assert change.largest_difference == pytest.approx(largest, rel=1e-5)
        lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        cosine = ((x * y).sum(1) / lengths).mean()
        assert change.mean_cosine == pytest.approx(cosine, rel=1e-5)
        same = output_change(models[0], models[0], inputs)
        assert same.largest_difference == 0.0
        assert same.mean_cosine == pytest.approx(1.0)


@pytest.mark.any_backend
def test_output_change_of_what_cannot_be_compared(
    make_backbone, make_embedder, inputs
):
    backbone = make_backbone()
    with pytest.raises(ValueError, match="FixedHeadBackbone and FixedHeadText"):
        output_change(backbone, make_embedder(), inputs)
    with pytest.raises(ValueError, match="one size. Received: 11 and 13"):
        output_change(backbone, make_backbone(hidden_dim=13), inputs)
    del inputs["segment_ids"]
    with pytest.raises(ValueError, match=r"\['padding_mask', 'token_ids'\]"):
        output_change(backbone, backbone, inputs)
    nothing = dict.fromkeys(
        ("token_ids", "segment_ids", "padding_mask"), np.zeros((3, 5))
    )
    with pytest.raises(ValueError, match="a real token.*3 rows"):
        output_change(backbone, backbone, nothing)
    with pytest.raises(ValueError, match="batch_size=0"):
        output_change(backbone, backbone, inputs | nothing, batch_size=0)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "head_size", [7, 5, [7, 7], [5, 11], [11], [11, 11, 11], 7.5, "11", None]
)
def test_head_size_has_to_grow(backbone, head_size):
    with pytest.raises(ValueError, match=r"now \(\[7, 7\]\).*head_size="):
        grow_head_size(backbone, head_size)


@pytest.mark.any_backend
@pytest.mark.parametrize("value", [3, 2, 5.0, None, True])
def test_heads_and_positions_have_to_grow(backbone, value):
    with pytest.raises(ValueError, match=f"least 4. .*num_heads={value!r}"):
        grow_heads(backbone, value)
    with pytest.raises(ValueError, match=f"least 18. .*max_seq.*={value!r}"):
        grow_positions(backbone, value)


@pytest.mark.any_backend
@pytest.mark.parametrize("layers", [[], [0, 1], [1, 1], [2], [-1], [0.0]])
def test_layers_to_drop_are_some(backbone, layers):
    with pytest.raises(ValueError, match="from 0 to 1.*layers="):
        drop_layers(backbone, layers)


CHANGES = {**GROWTHS, "drop_layers": lambda model: drop_layers(model, [0])}


@pytest.mark.any_backend
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_needs_our_backbone(change):
    with pytest.raises(ValueError, match="from_bert_backbone.*Received"):
        change(keras.Sequential())


# Keras warns of every layer that has nothing to quantize.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.any_backend
def test_refuses_quantized_kernels(make_embedder):
    embedder = make_embedder()
    embedder.backbone.quantize("int8")
    for change in CHANGES.values():
        with pytest.raises(ValueError, match="quantize that.*in int8"):
            change(embedder)


@pytest.mark.any_backend
def test_refuses_lora_until_it_is_merged(make_embedder, inputs, tmp_path):
    embedder = randomize(make_embedder())
    embedder.backbone.enable_lora(2)
    for weight in embedder.trainable_variables:
        weight.assign(np.ones(weight.shape))
    for change in CHANGES.values():
        with pytest.raises(ValueError, match="merges it.*attention/.*LoRA"):
            change(embedder)
    embedder.save_to_preset(tmp_path)
    merged = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    assert_same_outputs(grow_heads(merged, 5), embedder, inputs, 1e-5)
