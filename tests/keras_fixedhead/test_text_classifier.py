"""The classifier: its head in NumPy, other classes, empty batches."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTextClassifier
from tests import tiny_models
from tests.keras_fixedhead.test_text_embedder import numpy_pool


@pytest.fixture(scope="module")
def make_classifier(make_task):
    def make(pooler=True, pooling_mode="cls", **backbone):
        return make_task(
            FixedHeadTextClassifier,
            backbone={"pooler": pooler, **backbone},
            num_classes=3,
            pooling_mode=pooling_mode,
            labels=["no", "perhaps", "yes"],
        )

    return make


# Pooled by the backbone, or by layers of the classifier's own.
@pytest.mark.parametrize(
    ("pooler", "pooling_mode"),
    [(True, "cls"), (False, "cls"), (True, "mean")],
)
def test_equals_numpy(make_classifier, inputs, pooler, pooling_mode):
    model = tiny_models.add_noise(make_classifier(pooler, pooling_mode))
    real = inputs["padding_mask"].any(1)
    x = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    pooled = numpy_pool(x, inputs["padding_mask"], pooling_mode)
    own = not (pooler and pooling_mode == "cls")
    assert (model.pooled_dense is not None) is own
    dense = model.pooled_dense if own else model.backbone.pooled_dense
    kernel, bias = dense.get_weights()
    assert kernel.shape == (11, 11)
    pooled = np.tanh(pooled @ kernel + bias)
    kernel, bias = model.output_dense.get_weights()
    logits = ops.convert_to_numpy(model(inputs))
    assert logits.shape == (5, 3) and model.output.shape == (None, 3)
    expected = (pooled @ kernel + bias)[real]
    tiny_models.assert_close(logits[real], expected, atol=1e-5)


@pytest.mark.any_backend
def test_a_pooler_in_bfloat16_is_classified_in_float32(make_classifier, inputs):
    logits = make_classifier(dtype="bfloat16")(inputs)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "at least 2. Received: num_classes=1"),
        ({"labels": ["a", "b"]}, "num_classes=3 different .*'a', 'b'"),
        ({"labels": [0, 1, 2]}, "different names. Received: labels=.0, 1"),
        ({"pooling_mode": "sum"}, "`pooling_mode` .*'sum'"),
    ],
)
def test_wrong_arguments(make_backbone, arguments, message):
    with pytest.raises(ValueError, match=message):
        FixedHeadTextClassifier(
            make_backbone(pooler=True), **{"num_classes": 3} | arguments
        )


@pytest.mark.any_backend
def test_preset_of_other_classes(make_classifier, inputs, tmp_path):
    """A new head, with names of its own or none."""
    model = tiny_models.add_noise(make_classifier(pooling_mode="mean"))
    model.save_to_preset(str(tmp_path))
    for number, labels in ((5, None), (2, ["a", "b"])):
        names = {"labels": labels} if labels else {}
        other = FixedHeadTextClassifier.from_preset(
            str(tmp_path), num_classes=number, **names
        )
        assert other(inputs).shape == (5, number)
        assert other.labels == labels and other.pooling_mode == "mean"
        tiny_models.assert_close(
            other.backbone.get_weights(), model.backbone.get_weights()
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
