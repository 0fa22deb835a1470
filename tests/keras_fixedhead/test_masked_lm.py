"""Masked language modeling: the head in NumPy, and only where needed."""

import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadMaskedLM
from tests.tiny_models import add_noise, as_numpy, assert_close, tensors

# Rows of the fixture `inputs` that have real tokens.
REAL_ROWS = [0, 1, 3, 4]


@pytest.fixture(scope="module")
def make_masked_lm(make_task):
    def make(next_sentence=True, **backbone):
        return make_task(
            FixedHeadMaskedLM,
            backbone={"pooler": next_sentence, **backbone},
            next_sentence=next_sentence,
        )

    return make


def gelu_approximate(x):
    cubic = x + 0.044715 * x**3
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * cubic))


def relu(x):
    return np.maximum(x, 0.0)


@pytest.mark.parametrize(
    ("activation", "epsilon"), [(gelu_approximate, 1e-12), (relu, 0.1)]
)
def test_equals_numpy(make_masked_lm, masked_inputs, activation, epsilon):
    """BERT's head: dense, activation, norm, product with the embedding."""
    model = make_masked_lm(
        False, activation=activation.__name__, layer_norm_epsilon=epsilon
    )
    add_noise(model)
    inputs = {name: masked_inputs[name] for name in model.backbone.input}
    encoded = as_numpy(model.backbone(inputs)["sequence_output"])
    weights = {
        weight.path.split("masked_lm_head/")[1]: as_numpy(weight)
        for weight in model.masked_lm_head.weights
        if "token_embedding" not in weight.path
    }
    places = masked_inputs["mask_positions"]
    x = np.take_along_axis(encoded, places[:, :, None], axis=1)
    x = x @ weights["intermediate_dense/kernel"]
    x = activation(x + weights["intermediate_dense/bias"])
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    x = x * weights["intermediate_layer_norm/gamma"]
    x = x + weights["intermediate_layer_norm/beta"]
    [table] = model.backbone.token_embedding.get_weights()
    expected = (x @ table.T + weights["output_bias"])[REAL_ROWS]
    logits = as_numpy(model(masked_inputs))[REAL_ROWS]
    assert_close(logits, expected, atol=3e-5)


@pytest.mark.parametrize(
    "next_sentence",
    [pytest.param(False, marks=pytest.mark.any_backend), True],
)
def test_packed_predictions_of_some_positions(
    make_masked_lm, masked_inputs, next_sentence
):
    model = add_noise(make_masked_lm(next_sentence))
    real = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1]])

    def of_real_rows(outputs):
        outputs = as_numpy(outputs)
        if next_sentence:
            outputs["next_sentence"] = outputs["next_sentence"][REAL_ROWS]
        return outputs if next_sentence else {"masked_lm": outputs}

    expected = of_real_rows(model(masked_inputs))
    expected["masked_lm"] = expected["masked_lm"][real == 1]
    for fixed_size in (False, True):
        found = model.predict_packed(
            tensors(masked_inputs),
            real=ops.convert_to_tensor(real == 1),
            fixed_size=fixed_size,
        )
        assert_close(of_real_rows(found), expected, rtol=1e-5, atol=1e-5)


def test_the_token_embedding_is_the_matrix_of_the_logits(
    make_masked_lm, masked_inputs, vocabulary
):
    model = make_masked_lm(next_sentence=False)
    shapes = [tuple(weight.shape) for weight in model.weights]
    assert shapes.count((len(vocabulary), 11)) == 1
    assert (11, len(vocabulary)) not in shapes
    before = as_numpy(model(masked_inputs))
    # A token that is in no input changes the logits of itself alone.
    seen = masked_inputs["token_ids"].ravel()
    unseen = int(np.setdiff1d(range(len(vocabulary)), seen)[0])
    table = model.backbone.token_embedding.get_weights()[0]
    table[unseen] += 1.0
    model.backbone.token_embedding.set_weights([table])
    changed = as_numpy(model(masked_inputs)) != before
    assert changed.any((0, 1)).nonzero()[0].tolist() == [unseen]


def test_next_sentence_needs_a_pooler(make_backbone):
    with pytest.raises(ValueError, match="`next_sentence`.*pooler=True"):
        FixedHeadMaskedLM(make_backbone(), next_sentence=True)
