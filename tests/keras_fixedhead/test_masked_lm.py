"""Masked language modeling: the head in NumPy, and what it is trained on."""

import keras
import keras_hub
import numpy as np
import pytest
import scipy.special
from keras import ops

from keras_fixedhead import FixedHeadMaskedLM
from keras_fixedhead.convert import from_bert_backbone
from tests import tiny_models

TEXTS = ["attention heads.", "a b c d e f g", "head, head, head", "a tion."]
# Rows of the fixture `inputs` that have real tokens.
REAL_ROWS = [0, 1, 3, 4]


@pytest.fixture(scope="module")
def make_masked_lm(make_task):
    def make(next_sentence=True, **backbone):
        return make_task(
            FixedHeadMaskedLM,
            backbone={"pooler": next_sentence, **backbone},
            preprocessor={
                "mask_selection_length": 5,
                "mask_selection_rate": 0.3,
            },
            next_sentence=next_sentence,
        )

    return make


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
    tiny_models.add_noise(theirs)
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
    tiny_models.add_noise(models[0])
    encoded = np.random.default_rng(1).normal(size=(5, 13, 11))
    positions = masked_inputs["mask_positions"]
    logits = []
    for model in models:
        model.set_weights(models[0].get_weights())
        head = model.masked_lm_head
        logits.append(ops.convert_to_numpy(head(encoded, positions)))
    for other in logits[1:]:
        assert abs(other - logits[0]).max() > 0.01


@pytest.mark.parametrize(
    "next_sentence",
    [pytest.param(False, marks=pytest.mark.any_backend), True],
)
def test_packed_predictions_of_some_positions(
    make_masked_lm, masked_inputs, next_sentence
):
    model = tiny_models.add_noise(make_masked_lm(next_sentence))
    real = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1]])
    expected = tiny_models.as_numpy(model(masked_inputs))
    if not next_sentence:
        expected = {"masked_lm": expected}
    expected["masked_lm"] = expected["masked_lm"][real == 1]
    for fixed_size in (False, True):
        found = model.predict_packed(
            tiny_models.tensors(masked_inputs),
            real=ops.convert_to_tensor(real == 1),
            fixed_size=fixed_size,
        )
        found = tiny_models.as_numpy(found)
        if not next_sentence:
            found = {"masked_lm": found}
        assert found.keys() == expected.keys()
        for name, x in expected.items():
            rows = ... if name == "masked_lm" else REAL_ROWS
            np.testing.assert_allclose(
                found[name][rows], x[rows], rtol=1e-5, atol=1e-5
            )


@pytest.mark.any_backend
@pytest.mark.parametrize("next_sentence", [False, True])
def test_shapes_and_parameters(make_masked_lm, vocabulary, next_sentence):
    """The parameters are those that `test_presets` adds for the paper's."""
    model = make_masked_lm(next_sentence)
    d, v = 11, len(vocabulary)
    shapes = {"masked_lm": (None, None, v), "next_sentence": (None, 2)}
    outputs = model.output if next_sentence else {"masked_lm": model.output}
    assert {k: x.shape for k, x in outputs.items()} == {
        name: shapes[name] for name in outputs
    }
    heads = (d + 1) * d + 2 * d + v + next_sentence * 2 * (d + 1)
    assert model.count_params() - model.backbone.count_params() == heads


def test_each_prediction_is_of_its_position(make_masked_lm, masked_inputs):
    model = make_masked_lm()
    positions = masked_inputs["mask_positions"]
    last = {**masked_inputs, "mask_positions": positions[:, 2:]}
    before, one = (
        tiny_models.as_numpy(model(inputs)) for inputs in (masked_inputs, last)
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
    seen = masked_inputs["token_ids"].ravel()
    unseen = int(np.setdiff1d(range(len(vocabulary)), seen)[0])
    table = model.backbone.token_embedding.get_weights()[0]
    table[unseen] += 1.0
    model.backbone.token_embedding.set_weights([table])
    changed = ops.convert_to_numpy(model(masked_inputs)) != before
    assert changed.any((0, 1)).nonzero()[0].tolist() == [unseen]


def test_next_sentence_needs_a_pooler(make_backbone):
    with pytest.raises(ValueError, match="`next_sentence`.*pooler=True"):
        FixedHeadMaskedLM(make_backbone(), next_sentence=True)


@pytest.mark.any_backend
def test_preprocessor_masks_texts(make_masked_lm, vocabulary):
    preprocessor = make_masked_lm().preprocessor
    preprocessor.mask_token_rate = 1.0
    preprocessor.random_token_rate = 0.0
    x, y, weights = tiny_models.as_numpy(
        preprocessor((TEXTS, TEXTS[::-1]), y=None)
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
