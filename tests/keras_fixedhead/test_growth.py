"""Growth: equal outputs with random weights, and what training changes."""

import keras
import numpy as np
import pytest

from keras_fixedhead import FixedHeadMaskedLM, FixedHeadTextEmbedder
from keras_fixedhead.growth import (
    drop_layers,
    grow_head_size,
    grow_heads,
    grow_positions,
    output_change,
)
from tests.tiny_models import as_numpy, assert_close, randomize, real

# By name: the growth, and the arguments of the backbone that it changes.
GROWTHS = {
    "head_size": (grow_head_size, {"head_size": [17, 23]}),
    "heads": (grow_heads, {"num_heads": 5}),
    "positions": (grow_positions, {"max_sequence_length": 41}),
}
BACKBONES = {
    "head_size_per_head": {"head_size": [[2, 3, 5], 7]},
    "window_and_scale": {
        "head_size": None,
        "attention_window": 3,
        "attention_scale": 0.3,
        "pooler": True,
        "activation": "gelu",
    },
}


def grow(model, growth):
    change, argument = GROWTHS[growth]
    return change(model, **argument)


def numpy_weights(model):
    return [weight.copy() for weight in as_numpy(model.weights)]


def assert_same_outputs(after, before, inputs, atol):
    expected = real(before(inputs), inputs)
    assert all(np.std(x) > 0.01 for x in keras.tree.flatten(expected))
    assert_close(real(after(inputs), inputs), expected, atol=atol)


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
    if "head_size" in arguments and growth == "heads":
        arguments = {**arguments, "head_size": [5, 7]}
    backbone = randomize(make_backbone(dtype="float64", **arguments))
    weights = numpy_weights(backbone)
    grown = grow(backbone, growth)
    assert grown.count_params() > backbone.count_params()
    assert_same_outputs(grown, backbone, inputs, 1e-12)
    assert_close(backbone.weights, weights, rtol=0)


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
    grown = grow(backbone, growth)
    assert type(grown) is type(backbone)
    _, changed = GROWTHS[growth]
    assert grown.get_config() == {**backbone.get_config(), **changed}
    assert [w.path for w in grown.weights] == [w.path for w in backbone.weights]


@pytest.mark.any_backend
def test_bfloat16(make_backbone, inputs):
    backbone = randomize(make_backbone(dtype="mixed_bfloat16"))
    # 28 = 4 * 7: the scale is 2, exact in any dtype.
    grown = grow_head_size(backbone, 28)
    assert [w.dtype for w in grown.weights] == [
        w.dtype for w in backbone.weights
    ]
    # Sums of more products are rounded in another order.
    assert output_change(backbone, grown, inputs).mean_cosine > 0.999


def test_a_preprocessor_that_was_called(make_embedder):
    """It builds layers at its first call; the copy has not been called."""
    embedder = make_embedder()
    embedder.preprocessor(["attention head"])
    grown = grow_heads(embedder, 5)
    assert grown.backbone.num_heads == 5
    found, expected = (x.encode_text("attention") for x in (grown, embedder))
    assert_close(found, expected, atol=1e-5)


@pytest.mark.any_backend
def test_frozen_layers_stay_frozen(masked_lm):
    masked_lm.backbone.token_embedding.trainable = False
    masked_lm.backbone.transformer_layers[1].trainable = False
    masked_lm.backbone.transformer_layers[0].attention.key.trainable = False
    dropped = drop_layers(masked_lm, [0])
    assert not dropped.backbone.transformer_layers[0].trainable
    for _ in range(2):
        grown = grow_heads(masked_lm, 5)
        assert [v.path for v in grown.trainable_variables] == [
            v.path for v in masked_lm.trainable_variables
        ]
        assert 0 < len(grown.trainable_variables) < len(grown.weights)
        # All of the backbone but one layer.
        masked_lm.backbone.trainable = False
        masked_lm.backbone.transformer_layers[0].trainable = True


@pytest.mark.any_backend
def test_what_is_new_is_small_random_and_seeded(make_backbone):
    backbone = randomize(make_backbone())

    def new_columns(seed):
        grown = grow_head_size(backbone, 101, seed=seed)
        attention = grown.transformer_layers[1].attention
        kernels = as_numpy([attention.key.kernel, attention.value.kernel])
        return np.reshape(kernels, (2, 11, 3, 101))[..., 7:]

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
    [old], [new] = (
        model.position_embedding.get_weights() for model in (backbone, grown)
    )
    np.testing.assert_array_equal(new, old[np.arange(41) % 17])
    # Not the new length: the heads would be others.
    assert grown.head_size == 17


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("head_size", "left"), [(None, None), ([3, 5, 7, 2], [3, 7])]
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
    for part in (
        lambda model: model.masked_lm_head,
        lambda model: model.next_sentence_dense,
        lambda model: model.backbone.transformer_layers[-1],
    ):
        assert_close(part(dropped).weights, part(masked_lm).weights, rtol=0)
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
        x, y = (as_numpy(outputs(m))[chosen] for m in models)
        largest = abs(x - y).max()
        assert change.largest_difference == pytest.approx(largest, rel=1e-5)
        lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        cosine = ((x * y).sum(1) / lengths).mean()
        assert change.mean_cosine == pytest.approx(cosine, rel=1e-5)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        *((grow_head_size, x, "now .*7, 7.*head_size=")
          for x in (7, [5, 11], [11], "11")),
        *((grow_heads, x, "least 4. .*num_heads=") for x in (3, 5.0)),
        (grow_positions, 17, "least 18. .*max_sequence_length=17"),
        *((drop_layers, x, "from 0 to 1.*layers=")
          for x in ([], [0, 1], [2])),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)  # fmt: skip
def test_bad_arguments(make_backbone, change, value, message):
    with pytest.raises(ValueError, match=message):
        change(make_backbone(), value)
    with pytest.raises(ValueError, match="from_bert_backbone.*Received"):
        change(keras.Sequential(), value)


@pytest.mark.any_backend
def test_refuses_lora_until_it_is_merged(make_embedder, inputs, tmp_path):
    embedder = randomize(make_embedder())
    embedder.backbone.enable_lora(2)
    for weight in embedder.trainable_variables:
        weight.assign(np.ones(weight.shape))
    with pytest.raises(ValueError, match="merge LoRA.*attention/"):
        grow_heads(embedder, 5)
    embedder.save_to_preset(tmp_path)
    merged = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    assert_same_outputs(grow_heads(merged, 5), embedder, inputs, 1e-5)


def new_parts(backbone):
    """What was not in a block of three heads of 7, by name."""
    attention = backbone.transformer_layers[1].attention
    head_size = attention.head_size
    place = np.arange(sum(attention.head_sizes))
    new = (place % head_size >= 7) | (place >= 3 * head_size)
    parts = {}
    for name in ("query", "key", "value"):
        kernel, bias = getattr(attention, name).get_weights()
        parts[f"{name}/kernel"] = kernel[:, new]
        # What is added to all keys of a head changes no attention.
        if name != "key":
            parts[f"{name}/bias"] = bias[new]
    kernel, _ = attention.attention_output.get_weights()
    return {**parts, "output/kernel": kernel[new]}


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("growth", "first"),
    [
        ("head_size", {"query/kernel", "query/bias", "output/kernel"}),
        ("heads", {"output/kernel"}),
    ],
)
def test_training_what_is_new(float64, make_backbone, inputs, growth, first):
    backbone = randomize(make_backbone(dropout=0.0, dtype="float64"))
    weights = numpy_weights(backbone)
    grown = grow(backbone, growth)
    optimizer = keras.optimizers.SGD(0.1)
    grown.compile(optimizer, {"sequence_output": "mse"}, run_eagerly=True)
    labels = {"sequence_output": np.ones((5, 13, 11))}
    steps = [new_parts(grown)]
    for _ in range(2):
        grown.fit(inputs, labels, verbose=0)
        steps.append(new_parts(grown))
    for name, part in steps[0].items():
        moved = (steps[1][name] != part).mean()
        assert moved == (name in first), name
        assert (steps[2][name] != steps[1][name]).all(), name
    # JAX may give a training step the memory of its arguments.
    assert_close(backbone.weights, weights, rtol=0)
