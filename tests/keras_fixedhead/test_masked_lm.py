"""Masked language modeling: the head in NumPy, packed, every way to save it."""

import keras
import keras_hub
import numpy as np
import pytest
import scipy.special
from keras import ops

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from keras_fixedhead.convert import from_bert_backbone
from keras_fixedhead.masked_lm import (
    FixedHeadMaskedLM,
    FixedHeadMaskedLMPreprocessor,
)

TEXTS = ["attention heads.", "a b c d e f g", "head, head, head", "a tion."]
# Rows of the fixture `inputs` that have real tokens.
REAL_ROWS = [0, 1, 3, 4]


@pytest.fixture
def masked_inputs(inputs):
    """The inputs, and at most three real tokens of each to predict."""
    positions = [[0, 5, 12], [0, 0, 0], [0, 0, 0], [4, 2, 1], [8, 0, 4]]
    return {**inputs, "mask_positions": np.array(positions)}


@pytest.fixture
def make_masked_lm(vocabulary, make_backbone):
    def make(next_sentence=True, **arguments):
        return FixedHeadMaskedLM(
            make_backbone(pooler=next_sentence, **arguments),
            FixedHeadMaskedLMPreprocessor(
                FixedHeadTokenizer(vocabulary),
                sequence_length=13,
                mask_selection_length=5,
                mask_selection_rate=0.3,
            ),
            next_sentence=next_sentence,
        )

    return make


def add_noise(model):
    """Biases and norms start where an error would not show."""
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        noise = rng.normal(size=variable.shape)
        variable.assign_add(0.1 * noise.astype("float32"))


def numpy_outputs(model, inputs):
    outputs = {}
    for name, value in model(inputs).items():
        outputs[name] = ops.convert_to_numpy(value)
    return outputs


def gelu(x):
    return x * scipy.special.ndtr(x)


def gelu_approximate(x):
    cubic = x + 0.044715 * x**3
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * cubic))


def numpy_head(encoded, positions, weights, embedding, activation, epsilon):
    """BERT's head: dense, activation, norm, product with the embedding."""
    kernel, bias, gamma, beta, output_bias = weights
    x = np.stack([row[where] for row, where in zip(encoded, positions)])
    x = activation(x @ kernel + bias)
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    return (x * gamma + beta) @ embedding.T + output_bias


def test_equals_kerashub_and_numpy(masked_inputs, vocabulary):
    bert = keras_hub.models.BertBackbone(
        vocabulary_size=len(vocabulary),
        num_layers=2,
        num_heads=3,
        hidden_dim=21,
        intermediate_dim=23,
        max_sequence_length=17,
    )
    theirs = keras_hub.models.BertMaskedLM(bert)
    add_noise(theirs)
    ours = FixedHeadMaskedLM(from_bert_backbone(bert))
    ours.masked_lm_head.set_weights(theirs.masked_lm_head.get_weights())
    encoded = bert({k: masked_inputs[k] for k in bert.input})
    encoded = ops.convert_to_numpy(encoded["sequence_output"])
    weights = {
        v.path.split("/", 1)[1]: v for v in theirs.masked_lm_head.weights
    }
    weights = [
        ops.convert_to_numpy(weights[name])
        for name in (
            "intermediate_dense/kernel",
            "intermediate_dense/bias",
            "intermediate_layer_norm/gamma",
            "intermediate_layer_norm/beta",
            "output_bias",
        )
    ]
    # KerasHub's head has an activation and an epsilon of its own, ours those
    # of the encoder, as the original.
    for model, activation, epsilon in (
        (theirs, gelu, 1e-5),
        (ours, gelu_approximate, 1e-12),
    ):
        expected = numpy_head(
            encoded,
            masked_inputs["mask_positions"],
            weights,
            ops.convert_to_numpy(bert.token_embedding.embeddings),
            activation,
            epsilon,
        )
        logits = ops.convert_to_numpy(model(masked_inputs))
        np.testing.assert_allclose(
            logits[REAL_ROWS], expected[REAL_ROWS], atol=3e-5
        )


def test_the_head_has_the_backbone_s_activation_and_epsilon(
    make_masked_lm, masked_inputs
):
    models = [
        make_masked_lm(False),
        make_masked_lm(False, activation="relu"),
        make_masked_lm(False, layer_norm_epsilon=0.1),
    ]
    add_noise(models[0])
    encoded = np.random.default_rng(1).normal(size=(5, 13, 11))
    positions = masked_inputs["mask_positions"]
    logits = []
    for model in models:
        model.set_weights(models[0].get_weights())
        head = model.masked_lm_head
        logits.append(ops.convert_to_numpy(head(encoded, positions)))
    for other in logits[1:]:
        assert abs(other - logits[0]).max() > 0.01


@pytest.mark.parametrize("fixed_size", [False, True])
@pytest.mark.parametrize("next_sentence", [False, True])
def test_packed_equals_padded(
    make_masked_lm, masked_inputs, next_sentence, fixed_size
):
    model = make_masked_lm(next_sentence)
    add_noise(model)
    tensors = {k: ops.convert_to_tensor(v) for k, v in masked_inputs.items()}
    real = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1]])
    padded, every, some = (
        outputs if next_sentence else {"masked_lm": outputs}
        for outputs in (
            model(tensors),
            model.predict_packed(tensors, fixed_size=fixed_size),
            model.predict_packed(
                tensors,
                real=ops.convert_to_tensor(real == 1),
                fixed_size=fixed_size,
            ),
        )
    )
    assert padded.keys() == every.keys() == some.keys()
    for name in padded:
        expected, one, other = (
            ops.convert_to_numpy(outputs[name])
            for outputs in (padded, every, some)
        )
        assert one.shape == expected.shape and np.isfinite(one).all()
        np.testing.assert_allclose(
            one[REAL_ROWS], expected[REAL_ROWS], rtol=1e-5, atol=1e-5
        )
        if name == "masked_lm":  # one after the other
            expected = expected[real == 1]
        else:
            expected, other = expected[REAL_ROWS], other[REAL_ROWS]
        np.testing.assert_allclose(other, expected, rtol=1e-5, atol=1e-5)


def test_dropout_of_packed_tokens_is_for_training(
    make_masked_lm, masked_inputs
):
    model = make_masked_lm(False, dropout=0.5)
    tensors = {k: ops.convert_to_tensor(v) for k, v in masked_inputs.items()}
    one, other, dropped = (
        ops.convert_to_numpy(model.predict_packed(tensors, training=training))
        for training in (False, False, True)
    )
    np.testing.assert_array_equal(one, other)
    assert abs(dropped - one)[REAL_ROWS].max() > 0.01


def test_shapes(make_masked_lm, masked_inputs, vocabulary):
    model = make_masked_lm()
    assert {name: value.shape for name, value in model.output.items()} == {
        "masked_lm": (None, None, len(vocabulary)),
        "next_sentence": (None, 2),
    }
    outputs = model(masked_inputs)
    assert outputs["masked_lm"].shape == (5, 3, len(vocabulary))
    assert outputs["next_sentence"].shape == (5, 2)
    alone = make_masked_lm(next_sentence=False)
    assert alone(masked_inputs).shape == (5, 3, len(vocabulary))


def test_each_prediction_is_of_its_position(make_masked_lm, masked_inputs):
    model = make_masked_lm()
    positions = masked_inputs["mask_positions"]
    before = numpy_outputs(model, masked_inputs)
    one = numpy_outputs(
        model, {**masked_inputs, "mask_positions": positions[:, 2:]}
    )
    np.testing.assert_allclose(
        one["masked_lm"], before["masked_lm"][:, 2:], atol=1e-6
    )
    np.testing.assert_array_equal(one["next_sentence"], before["next_sentence"])
    assert abs(before["masked_lm"][0, 0] - before["masked_lm"][0, 1]).max() > 0


def test_the_token_embedding_is_the_matrix_of_the_logits(
    make_masked_lm, masked_inputs, vocabulary
):
    model = make_masked_lm(next_sentence=False)
    shapes = [tuple(weight.shape) for weight in model.weights]
    assert shapes.count((len(vocabulary), 11)) == 1
    assert (11, len(vocabulary)) not in shapes
    before = ops.convert_to_numpy(model(masked_inputs))
    # A token that is in no input changes the logits of itself alone.
    unseen = min(set(range(len(vocabulary))) - set(
        masked_inputs["token_ids"].ravel()
    ))  # fmt: skip
    table = model.backbone.token_embedding.get_weights()[0]
    table[unseen] += 1.0
    model.backbone.token_embedding.set_weights([table])
    changed = ops.convert_to_numpy(model(masked_inputs)) != before
    assert changed.any((0, 1)).nonzero()[0].tolist() == [unseen]


def test_parameters_beside_the_backbone(make_masked_lm, vocabulary):
    """Those that `test_presets` adds for the paper's tables."""
    d, v = 11, len(vocabulary)
    for next_sentence in (False, True):
        model = make_masked_lm(next_sentence)
        heads = (d + 1) * d + 2 * d + v + next_sentence * 2 * (d + 1)
        assert model.count_params() - model.backbone.count_params() == heads


def test_next_sentence_needs_a_pooler(make_backbone):
    with pytest.raises(ValueError, match="`next_sentence`.*pooler=True"):
        FixedHeadMaskedLM(make_backbone(), next_sentence=True)


def test_unknown_argument_is_an_error(make_backbone):
    with pytest.raises(TypeError, match="MaskedLM has no argument `nsp`"):
        FixedHeadMaskedLM(make_backbone(), nsp=True)


@pytest.mark.any_backend
def test_mixed_bfloat16(make_masked_lm, masked_inputs):
    exact, mixed = make_masked_lm(), make_masked_lm(dtype="mixed_bfloat16")
    mixed.set_weights(exact.get_weights())
    assert {str(weight.dtype) for weight in mixed.weights} == {"float32"}
    expected = numpy_outputs(exact, masked_inputs)
    for name, value in mixed(masked_inputs).items():
        assert keras.backend.standardize_dtype(value.dtype) == "bfloat16"
        value = ops.convert_to_numpy(ops.cast(value, "float32"))
        np.testing.assert_allclose(
            value[REAL_ROWS], expected[name][REAL_ROWS], atol=0.03
        )


def test_get_config(make_masked_lm):
    for next_sentence in (False, True):
        model = make_masked_lm(next_sentence)
        again = FixedHeadMaskedLM.from_config(model.get_config())
        assert again.get_config() == model.get_config()
        assert again.next_sentence is next_sentence
        assert again.preprocessor.mask_selection_rate == 0.3


def assert_same_model(again, model, inputs):
    for one, other in zip(again.weights, model.weights, strict=True):
        assert one.path == other.path
        np.testing.assert_array_equal(
            ops.convert_to_numpy(one), ops.convert_to_numpy(other)
        )
    expected = numpy_outputs(model, inputs)
    for name, value in numpy_outputs(again, inputs).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6)
    ours, theirs = again.preprocessor, model.preprocessor
    assert ours.sequence_length == theirs.sequence_length == 13
    assert ours.mask_selection_length == theirs.mask_selection_length == 5
    assert ours.tokenizer.get_vocabulary() == theirs.tokenizer.get_vocabulary()


# KerasHub's MaskedLM compiles itself when it is made.
@pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)
def test_keras_file(make_masked_lm, masked_inputs, tmp_path):
    model = make_masked_lm()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same_model(again, model, masked_inputs)


@pytest.mark.any_backend
def test_preset(make_masked_lm, masked_inputs, tmp_path):
    model = make_masked_lm()
    add_noise(model)
    model.save_to_preset(tmp_path)
    again = FixedHeadMaskedLM.from_preset(str(tmp_path))
    assert_same_model(again, model, masked_inputs)
    # What it is for: the encoder, in other tasks.
    inputs = {k: masked_inputs[k] for k in model.backbone.input}
    expected = model.backbone(inputs)["sequence_output"]
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    # As long as the encoder allows.
    assert embedder.preprocessor(["a"])["token_ids"].shape == (1, 17)
    assert embedder.encode_text(TEXTS, verbose=0).shape == (4, 11)
    for encoder in (
        embedder.backbone,
        FixedHeadBackbone.from_preset(str(tmp_path)),
    ):
        np.testing.assert_allclose(
            encoder(inputs)["sequence_output"], expected, atol=1e-6
        )


@pytest.mark.any_backend
def test_preprocessor_masks_texts(make_masked_lm, vocabulary):
    preprocessor = make_masked_lm().preprocessor
    preprocessor.mask_token_rate = 1.0
    preprocessor.random_token_rate = 0.0
    x, y, weights = (
        {k: np.asarray(v) for k, v in part.items()}
        if isinstance(part, dict)
        else np.asarray(part)
        for part in preprocessor((TEXTS, TEXTS[::-1]), y=None)
    )
    assert x["token_ids"].shape == (4, 13) and y.shape == (4, 5)
    whole = x["token_ids"].copy()
    for row, positions, ids, real in zip(
        whole, x["mask_positions"], y, weights == 1
    ):
        assert (row[positions[real]] == vocabulary.index("[MASK]")).all()
        row[positions[real]] = ids[real]
    assert weights.sum() > 0
    # The third text with the second, of which what does not fit is cut off.
    pieces = "[CLS] head , head , head [SEP] a b c d e [SEP]".split()
    assert [vocabulary[i] for i in whole[2]] == pieces
    assert x["segment_ids"][2].tolist() == [0] * 7 + [1] * 6


@pytest.mark.slow
@pytest.mark.any_backend
def test_fit_on_texts(make_masked_lm, vocabulary):
    model = make_masked_lm(next_sentence=False, num_layers=1, dropout=0.0)
    model.compile(optimizer=keras.optimizers.Adam(0.03))
    history = model.fit(
        TEXTS * 40, batch_size=16, epochs=4, verbose=0, shuffle=False
    ).history
    # Of 20 predictions there are 2 + 3 + 2 + 2 to make; the rest count as 0.
    guess = 9 / 20 * np.log(len(vocabulary))
    first, *_, last = history["loss"]
    assert last < 0.6 * guess and 0.6 * guess < first < guess
    accuracy = history["sparse_categorical_accuracy"]
    assert accuracy[-1] > accuracy[0]
