"""The classifier: its head in NumPy, other classes, texts and pairs."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTextClassifier
from tests import tiny_models
from tests.keras_fixedhead.test_text_embedder import numpy_pool

LABELS = ["no", "perhaps", "yes"]


@pytest.fixture(scope="module")
def make_classifier(make_task):
    def make(pooler=True, pooling_mode="cls", head_dropout=0.1, **backbone):
        return make_task(
            FixedHeadTextClassifier,
            backbone={"pooler": pooler, **backbone},
            num_classes=3,
            pooling_mode=pooling_mode,
            dropout=head_dropout,
            labels=LABELS,
        )

    return make


# Pooled by the backbone, or by layers of the classifier's own.
@pytest.mark.parametrize(
    ("pooler", "pooling_mode"),
    [(True, "cls"), (False, "cls"), (True, "mean"), (False, "max")],
)
def test_equals_numpy(make_classifier, inputs, pooler, pooling_mode):
    model = tiny_models.add_noise(make_classifier(pooler, pooling_mode))
    real = inputs["padding_mask"].any(1)
    encoded = model.backbone(inputs)
    pooled = numpy_pool(
        ops.convert_to_numpy(encoded["sequence_output"]),
        inputs["padding_mask"],
        pooling_mode,
    )
    own = not (pooler and pooling_mode == "cls")
    assert (model.pooled_dense is not None) is own
    dense = model.pooled_dense if own else model.backbone.pooled_dense
    kernel, bias = dense.get_weights()
    assert kernel.shape == (11, 11)
    pooled = np.tanh(pooled @ kernel + bias)
    kernel, bias = model.output_dense.get_weights()
    logits = ops.convert_to_numpy(model(inputs))
    assert logits.shape == (5, 3) and model.output.shape == (None, 3)
    np.testing.assert_allclose(
        logits[real], (pooled @ kernel + bias)[real], atol=1e-5
    )


@pytest.mark.any_backend
def test_a_pooler_in_bfloat16_is_classified_in_float32(make_classifier, inputs):
    logits = make_classifier(dtype="bfloat16")(inputs)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "at least 2. Received: num_classes=1"),
        ({"num_classes": 2.0}, "an integer .* Received: num_classes=2.0"),
        ({"labels": ["a", "b"]}, "num_classes=3 different .*'a', 'b'"),
        ({"labels": ["a", "b", "a"]}, "`labels` must be None or"),
        ({"labels": [0, 1, 2]}, "different names. Received: labels=.0, 1"),
        ({"labels": "abc"}, "Received: labels='abc'"),
        ({"pooling_mode": "sum"}, "`pooling_mode` .*'sum'"),
    ],
)
def test_wrong_arguments(make_backbone, arguments, message):
    with pytest.raises(ValueError, match=message):
        FixedHeadTextClassifier(
            make_backbone(pooler=True), **{"num_classes": 3} | arguments
        )


def test_the_first_token_of_a_causal_backbone_sees_no_other(make_backbone):
    with pytest.raises(ValueError, match="causal=True.*pooling_mode='cls'"):
        FixedHeadTextClassifier(make_backbone(causal=True), 3)


@pytest.mark.any_backend
def test_preset_of_other_classes(make_classifier, inputs, tmp_path):
    """A new head, with names of its own or none."""
    model = tiny_models.add_noise(make_classifier(pooling_mode="mean"))
    model.save_to_preset(str(tmp_path))
    expected = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    for options, labels in (
        ({"num_classes": 5}, None),
        ({"num_classes": 2, "labels": ["a", "b"]}, ["a", "b"]),
    ):
        other = FixedHeadTextClassifier.from_preset(str(tmp_path), **options)
        assert other(inputs).shape == (5, options["num_classes"])
        assert other.labels == labels and other.pooling_mode == "mean"
        np.testing.assert_allclose(
            other.backbone(inputs)["sequence_output"], expected, atol=1e-6
        )


@pytest.mark.any_backend
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graph operations"
)
def test_an_empty_batch(make_classifier):
    """As served: by a graph of any shape."""
    import tensorflow as tf

    model = make_classifier()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)] * 2)
    def classify(first, second):
        inputs = model.preprocessor.pad_to_longest(first, second)
        return model.classify_packed(inputs)

    assert classify([], []).shape == (0, 3)
    assert classify(["a", "b c"], ["d", ""]).shape == (2, 3)


@pytest.mark.slow
@pytest.mark.any_backend
def test_fit_on_pairs_of_texts(make_classifier):
    model = make_classifier(
        pooler=False,
        pooling_mode="mean",
        num_layers=1,
        dropout=0.0,
        head_dropout=0.0,
    )
    model.compile(optimizer=keras.optimizers.Adam(0.02))
    first = ["a b c", "d e f", "head"] * 24
    second = ["head", "a", "f e d"] * 24
    labels = np.array([0, 1, 2] * 24)
    history = model.fit(
        (first, second),
        labels,
        batch_size=8,
        epochs=3,
        verbose=0,
        shuffle=False,
    ).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["sparse_categorical_accuracy"][-1] == 1.0
    inputs = model.preprocessor((first[:3], second[:3]), y=None)
    found = ops.convert_to_numpy(model(inputs)).argmax(axis=-1)
    assert found.tolist() == [0, 1, 2]
