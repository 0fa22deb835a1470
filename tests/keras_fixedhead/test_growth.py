"""Growth: equal outputs with random weights, gradients where promised."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadCausalLM,
    FixedHeadMaskedLM,
    FixedHeadMaskedLMPreprocessor,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from keras_fixedhead.growth import (
    drop_layers,
    grow_head_size,
    grow_heads,
    grow_positions,
    output_change,
)

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

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
tensorflow_only = pytest.mark.skipif(
    not ON_TENSORFLOW,
    reason="JAX computes in float32 unless told otherwise at its start",
)


def randomize(model):
    """Biases of zero would hide errors."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(0.3 * rng.normal(size=weight.shape))
    return model


def numpy_weights(model):
    return [ops.convert_to_numpy(weight).copy() for weight in model.weights]


def real_outputs(model, inputs):
    """All outputs, those for sequences and tokens that are not padding."""
    outputs = model(inputs)
    if not isinstance(outputs, dict):
        outputs = {"output": outputs}
    real = inputs["padding_mask"] == 1
    arrays = {}
    for name, value in outputs.items():
        x = ops.convert_to_numpy(value)
        arrays[name] = x[real if name == "sequence_output" else real.any(1)]
    return arrays


def assert_same_outputs(after, before, inputs, atol):
    expected = real_outputs(before, inputs)
    got = real_outputs(after, inputs)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert np.std(value) > 0.01
        np.testing.assert_allclose(got[name], value, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def backbone(make_backbone):
    """What no test changes."""
    return make_backbone()


@pytest.fixture
def make_masked_lm(vocabulary, make_backbone):
    def make(**arguments):
        return FixedHeadMaskedLM(
            make_backbone(pooler=True, **arguments),
            FixedHeadMaskedLMPreprocessor(
                FixedHeadTokenizer(vocabulary), sequence_length=13
            ),
            next_sentence=True,
        )

    return make


@pytest.fixture
def masked_inputs(inputs):
    positions = [[0, 5, 12], [0, 0, 0], [0, 0, 0], [4, 2, 1], [8, 0, 4]]
    return {**inputs, "mask_positions": np.array(positions)}


@pytest.mark.any_backend
@pytest.mark.parametrize("arguments", BACKBONES.values(), ids=BACKBONES)
@pytest.mark.parametrize(
    ("dtype", "atol"),
    [
        pytest.param(
            "float32",
            1e-5,
            marks=pytest.mark.slow if ON_TENSORFLOW else (),
        ),
        pytest.param("float64", 1e-12, marks=tensorflow_only),
    ],
)
@pytest.mark.parametrize("growth", GROWTHS)
def test_backbone_computes_the_same(
    make_backbone, inputs, growth, arguments, dtype, atol
):
    if arguments.get("head_size", 7) is None and "per_layer" in growth:
        pytest.skip("the heads are larger")
    if isinstance(arguments.get("head_size"), list) and growth == "heads":
        if isinstance(arguments["head_size"][0], list):
            pytest.skip("one size per head fits no more heads")
    backbone = randomize(make_backbone(dtype=dtype, **arguments))
    weights = numpy_weights(backbone)
    grown = GROWTHS[growth](backbone)
    assert type(grown) is FixedHeadBackbone
    assert grown.count_params() > backbone.count_params()
    assert_same_outputs(grown, backbone, inputs, atol)
    for now, then in zip(numpy_weights(backbone), weights):
        np.testing.assert_array_equal(now, then)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "growth",
    [
        "head_size",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in [*GROWTHS][1:]
        ),
    ],
)
def test_embedder_computes_the_same(make_embedder, inputs, growth):
    embedder = make_embedder(prompts={"query": "a b "}, pooling_mode="max")
    grown = GROWTHS[growth](randomize(embedder))
    assert type(grown) is FixedHeadTextEmbedder
    assert grown.pooling_mode == "max"
    assert_same_outputs(grown, embedder, inputs, 1e-5)
    np.testing.assert_allclose(
        grown.encode_text(["head", "中 é"], prompt="query", verbose=0),
        embedder.encode_text(["head", "中 é"], prompt="query", verbose=0),
        atol=1e-5,
    )
    # Its own, although its vocabulary is the same.
    grown.preprocessor.sequence_length = 17
    assert embedder.preprocessor.sequence_length == 13


@pytest.mark.any_backend
@pytest.mark.parametrize("growth", GROWTHS)
def test_masked_lm_computes_the_same(make_masked_lm, masked_inputs, growth):
    masked_lm = randomize(make_masked_lm())
    grown = GROWTHS[growth](masked_lm)
    assert type(grown) is FixedHeadMaskedLM
    assert_same_outputs(grown, masked_lm, masked_inputs, 1e-5)
    assert grown.preprocessor.sequence_length == 13
    # The head's logits are of the backbone's own embedding.
    embedding = grown.backbone.token_embedding
    assert grown.masked_lm_head.token_embedding is embedding


@pytest.mark.any_backend
@pytest.mark.parametrize("growth", GROWTHS)
def test_language_model_computes_the_same(make_backbone, inputs, growth):
    model = randomize(FixedHeadCausalLM(make_backbone(causal=True)))
    grown = GROWTHS[growth](model)
    assert type(grown) is FixedHeadCausalLM
    assert grown.count_params() > model.count_params()
    expected, got = (
        ops.convert_to_numpy(each.score(inputs["token_ids"]))
        for each in (model, grown)
    )
    assert np.std(expected) > 0.01
    np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.any_backend
def test_language_model_continues_texts_the_same(make_backbone, inputs):
    model = randomize(FixedHeadCausalLM(make_backbone(causal=True)))
    grown = grow_heads(grow_head_size(model, [7, 13]), 5)
    given = np.zeros_like(inputs["token_ids"])
    given[:, :4] = 1
    prompts = {"token_ids": inputs["token_ids"], "padding_mask": given}
    for each in (model, grown):
        each.compile(sampler="greedy")
    expected, got = (
        ops.convert_to_numpy(
            each.generate(prompts, stop_token_ids=None)["token_ids"]
        )
        for each in (model, grown)
    )
    assert (expected[:, 4:] != inputs["token_ids"][:, 4:]).any()
    np.testing.assert_array_equal(got, expected)


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
    assert [layer.name for layer in grown._flatten_layers()] == [
        layer.name for layer in backbone._flatten_layers()
    ]


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
def test_frozen_layers_stay_frozen(make_masked_lm):
    masked_lm = make_masked_lm()
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


def gradients(model, inputs):
    """Of the sum of sines at real tokens, by the variables' paths."""
    mask = inputs["padding_mask"][..., None].astype("float32")

    def loss_of(outputs):
        return ops.sum(ops.sin(outputs["sequence_output"]) * mask)

    values = [v.value for v in model.trainable_variables]
    if keras.backend.backend() == "jax":
        import jax

        def loss(trainable):
            state = [v.value for v in model.non_trainable_variables]
            return loss_of(model.stateless_call(trainable, state, inputs)[0])

        computed = jax.grad(loss)(values)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of(model(inputs))
        computed = [
            tf.convert_to_tensor(g) for g in tape.gradient(loss, values)
        ]
    return {
        variable.path: ops.convert_to_numpy(gradient)
        for variable, gradient in zip(model.trainable_variables, computed)
    }


def new_parts(layer, gradient_of, old_sizes):
    """The gradients of what is new in a block's attention, by name."""
    attention = layer.attention
    new = np.ones(sum(attention.head_sizes), bool)
    start = 0
    for size, new_size in zip(old_sizes, attention.head_sizes):
        new[start : start + size] = False
        start += new_size
    parts = {}
    for name in ("query", "key", "value", "attention_output"):
        projection = getattr(attention, name)
        kernel = gradient_of[projection.kernel.path]
        if name == "attention_output":
            parts["output/kernel"] = kernel[new]
            continue
        parts[f"{name}/kernel"] = kernel[:, new]
        # What is added to all keys of a head changes no attention.
        if name != "key":
            parts[f"{name}/bias"] = gradient_of[projection.bias.path][new]
    return parts


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("growth", "first"),
    [
        ("head_size", {"query/kernel", "query/bias", "output/kernel"}),
        ("heads", {"output/kernel"}),
    ],
)
def test_gradients_of_what_is_new(make_backbone, inputs, growth, first):
    grown = GROWTHS[growth](randomize(make_backbone(dropout=0.0)))
    gradient_of = gradients(grown, inputs)
    for layer in grown.transformer_layers:
        for name, part in new_parts(layer, gradient_of, (7, 7, 7)).items():
            assert ((part != 0) == (name in first)).all(), name
    for variable in grown.trainable_variables:
        step = 0.01 * gradient_of[variable.path]
        variable.assign(ops.convert_to_numpy(variable) - step)
    gradient_of = gradients(grown, inputs)
    for layer in grown.transformer_layers:
        for name, part in new_parts(layer, gradient_of, (7, 7, 7)).items():
            assert (part != 0).all(), name


def test_what_is_new_is_small_random_and_seeded(make_backbone):
    backbone = randomize(make_backbone())

    def new_columns(seed):
        attention = grow_head_size(
            backbone, 101, seed=seed
        ).transformer_layers[1].attention  # fmt: skip
        kernels = (attention.key.kernel, attention.value.kernel)
        return np.concatenate(
            [
                ops.convert_to_numpy(kernel).reshape(11, 3, 101)[..., 7:]
                for kernel in kernels
            ]
        )

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
    for i in range(41):
        np.testing.assert_array_equal(new[i], old[i % 17])
    # Not the new length: the heads would be others.
    assert grown.head_size == 17
    longer = {
        name: np.ones((2, 41), "int32")
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
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
def test_dropped_layers_of_a_task(make_masked_lm, masked_inputs):
    masked_lm = randomize(make_masked_lm(num_layers=3))
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


# KerasHub's TextEmbedder has a compile() of its own.
@pytest.mark.any_backend
@pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)
def test_preset_of_what_is_grown(make_embedder, inputs, tmp_path):
    embedder = randomize(make_embedder(head_size=None))
    grown = grow_positions(
        grow_heads(grow_head_size(embedder, [17, 19]), 5), 23
    )
    grown.save_to_preset(tmp_path)
    again = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    assert again.backbone.get_config()["head_size"] == [17, 19]
    assert_same_outputs(again, embedder, inputs, 1e-5)
    for weight, expected in zip(numpy_weights(again), numpy_weights(grown)):
        np.testing.assert_array_equal(weight, expected)


@pytest.mark.slow
@pytest.mark.any_backend
def test_training_what_is_grown_leaves_the_other(make_masked_lm, masked_inputs):
    masked_lm = randomize(make_masked_lm())
    weights = numpy_weights(masked_lm)
    grown = grow_heads(masked_lm, 5)
    labels = {
        "masked_lm": np.ones((5, 3), "int32"),
        "next_sentence": np.ones(5, "int32"),
    }
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    grown.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss={"masked_lm": loss, "next_sentence": loss},
        weighted_metrics=[],
    )
    grown.preprocessor = None
    grown.fit(masked_inputs, labels, shuffle=False, verbose=0)
    for now, then in zip(numpy_weights(masked_lm), weights):
        np.testing.assert_array_equal(now, then)


@pytest.mark.any_backend
def test_output_change(make_backbone, make_embedder, inputs):
    before, after = make_embedder(), make_embedder()
    change = output_change(before, after, inputs, batch_size=2)
    real = inputs["padding_mask"] == 1
    x, y = (
        ops.convert_to_numpy(m(inputs))[real.any(1)] for m in (before, after)
    )
    assert change.largest_difference == pytest.approx(
        abs(x - y).max(), rel=1e-5
    )
    # Embeddings have length 1.
    assert change.mean_cosine == pytest.approx((x * y).sum(1).mean(), rel=1e-5)

    before, after = before.backbone, after.backbone
    change = output_change(before, after, inputs, batch_size=2)
    x, y = (
        ops.convert_to_numpy(model(inputs)["sequence_output"])[real]
        for model in (before, after)
    )
    assert change.largest_difference == pytest.approx(
        abs(x - y).max(), rel=1e-5
    )
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    assert change.mean_cosine == pytest.approx(
        ((x * y).sum(1) / lengths).mean(), rel=1e-5
    )
    same = output_change(before, before, inputs)
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


@pytest.mark.parametrize(
    "head_size", [7, 5, [7, 7], [5, 11], [11], [11, 11, 11], 7.5, "11", None]
)
def test_head_size_has_to_grow(backbone, head_size):
    with pytest.raises(ValueError, match=r"now \(\[7, 7\]\).*head_size="):
        grow_head_size(backbone, head_size)


@pytest.mark.parametrize("value", [3, 2, 5.0, None, True])
def test_heads_and_positions_have_to_grow(backbone, value):
    with pytest.raises(ValueError, match=f"least 4. .*num_heads={value!r}"):
        grow_heads(backbone, value)
    with pytest.raises(ValueError, match=f"least 18. .*max_seq.*={value!r}"):
        grow_positions(backbone, value)


@pytest.mark.parametrize("layers", [[], [0, 1], [1, 1], [2], [-1], [0.0]])
def test_layers_to_drop_are_some(backbone, layers):
    with pytest.raises(ValueError, match="from 0 to 1.*layers="):
        drop_layers(backbone, layers)


CHANGES = {**GROWTHS, "drop_layers": lambda model: drop_layers(model, [0])}


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


@pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)
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
