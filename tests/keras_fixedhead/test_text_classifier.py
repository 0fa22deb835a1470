"""The classifier: its head in NumPy, packed, pairs, every way to save it."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadTextClassifier,
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from tests.keras_fixedhead.test_masked_lm import REAL_ROWS, add_noise
from tests.keras_fixedhead.test_text_embedder import numpy_pool

LABELS = ["no", "perhaps", "yes"]

# KerasHub's TextClassifier compiles itself when it is made.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)

# Pooled by the backbone, or by layers of the classifier's own.
HEADS = pytest.mark.parametrize(
    ("pooler", "pooling_mode"),
    [(True, "cls"), (False, "cls"), (True, "mean"), (False, "max")],
)


@pytest.fixture
def make_classifier(vocabulary, make_backbone):
    def make(
        pooler=True, pooling_mode="cls", head_dropout=0.1, **backbone_arguments
    ):
        return FixedHeadTextClassifier(
            make_backbone(pooler=pooler, **backbone_arguments),
            num_classes=3,
            preprocessor=FixedHeadTextClassifierPreprocessor(
                FixedHeadTokenizer(vocabulary), sequence_length=13
            ),
            pooling_mode=pooling_mode,
            dropout=head_dropout,
            labels=LABELS,
        )

    return make


def tensors(inputs):
    return {k: ops.convert_to_tensor(v) for k, v in inputs.items()}


@HEADS
def test_equals_numpy(make_classifier, inputs, pooler, pooling_mode):
    model = make_classifier(pooler, pooling_mode)
    add_noise(model)
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
        logits[REAL_ROWS], (pooled @ kernel + bias)[REAL_ROWS], atol=1e-5
    )


@HEADS
def test_packed_equals_padded(make_classifier, inputs, pooler, pooling_mode):
    model = make_classifier(pooler, pooling_mode)
    add_noise(model)
    expected = ops.convert_to_numpy(model(inputs))
    for fixed_size in (False, True):
        packed = ops.convert_to_numpy(
            model.classify_packed(tensors(inputs), fixed_size=fixed_size)
        )
        assert packed.shape == (5, 3) and np.isfinite(packed).all()
        np.testing.assert_allclose(
            packed[REAL_ROWS], expected[REAL_ROWS], atol=1e-5
        )


def test_packed_with_a_window_equals_padded(make_classifier, inputs):
    model = make_classifier(attention_window=2)
    add_noise(model)
    np.testing.assert_allclose(
        ops.convert_to_numpy(model.classify_packed(tensors(inputs)))[REAL_ROWS],
        ops.convert_to_numpy(model(inputs))[REAL_ROWS],
        atol=1e-5,
    )


@pytest.mark.parametrize("pooling_mode", ["cls", "mean"])
def test_dropout_is_for_training(make_classifier, inputs, pooling_mode):
    model = make_classifier(
        pooling_mode=pooling_mode, head_dropout=0.5, dropout=0.0
    )
    batch = tensors(inputs)
    one, other, dropped = (
        ops.convert_to_numpy(model.classify_packed(batch, training=training))
        for training in (False, False, True)
    )
    np.testing.assert_array_equal(one, other)
    # The backbone drops nothing here, so the head does.
    assert abs(dropped - one)[REAL_ROWS].max() > 1e-3


@pytest.mark.any_backend
@pytest.mark.parametrize("pooling_mode", ["cls", "mean"])
def test_bfloat16_is_classified_in_float32(
    make_classifier, inputs, pooling_mode
):
    exact = make_classifier(pooling_mode=pooling_mode)
    for dtype in ("mixed_bfloat16", "bfloat16"):
        half = make_classifier(pooling_mode=pooling_mode, dtype=dtype)
        half.set_weights(exact.get_weights())
        for logits in (half(inputs), half.classify_packed(tensors(inputs))):
            assert keras.backend.standardize_dtype(logits.dtype) == "float32"
            np.testing.assert_allclose(
                ops.convert_to_numpy(logits)[REAL_ROWS],
                ops.convert_to_numpy(exact(inputs))[REAL_ROWS],
                atol=0.01,
            )


@pytest.mark.any_backend
def test_float64(float64, make_classifier, inputs):
    logits = make_classifier(dtype="float64")(inputs)
    assert keras.backend.standardize_dtype(logits.dtype) == "float64"


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


def test_unknown_argument_is_an_error(make_backbone):
    with pytest.raises(TypeError, match="has no argument `activation`"):
        FixedHeadTextClassifier(make_backbone(), 3, activation="softmax")


@pytest.mark.any_backend
def test_unknown_truncation_is_an_error(vocabulary):
    with pytest.raises(ValueError, match="`truncate` .* truncate='longest'"):
        FixedHeadTextClassifierPreprocessor(
            FixedHeadTokenizer(vocabulary), truncate="longest"
        )


@pytest.mark.any_backend
def test_get_config(make_classifier):
    model = make_classifier(pooling_mode="mean", head_dropout=0.3)
    again = FixedHeadTextClassifier.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert again.labels == LABELS and again.num_classes == 3
    assert again.pooling_mode == "mean" and again.dropout == 0.3
    assert again.preprocessor.sequence_length == 13
    assert again.preprocessor.truncate == "round_robin"


def assert_same_model(again, model, inputs):
    assert again.labels == LABELS
    assert again.pooling_mode == model.pooling_mode
    np.testing.assert_allclose(
        ops.convert_to_numpy(again(inputs)),
        ops.convert_to_numpy(model(inputs)),
        atol=1e-6,
    )
    ours, theirs = again.preprocessor, model.preprocessor
    assert ours.sequence_length == theirs.sequence_length == 13
    assert ours.tokenizer.get_vocabulary() == theirs.tokenizer.get_vocabulary()


@pytest.mark.parametrize("pooling_mode", ["cls", "mean"])
def test_keras_file_and_preset(make_classifier, inputs, tmp_path, pooling_mode):
    model = make_classifier(pooling_mode=pooling_mode)
    add_noise(model)
    model.save(tmp_path / "model.keras")
    assert_same_model(
        keras.models.load_model(tmp_path / "model.keras"), model, inputs
    )
    model.save_to_preset(tmp_path / "preset")
    again = FixedHeadTextClassifier.from_preset(str(tmp_path / "preset"))
    assert_same_model(again, model, inputs)


FRESH_PROCESS = """
import sys
import keras, numpy as np
import keras_fixedhead
folder = sys.argv[1]
model = keras.models.load_model(f"{folder}/model.keras", compile=False)
again = keras_fixedhead.FixedHeadTextClassifier.from_preset(f"{folder}/preset")
texts = ["Attention heads.", "", "中 é"]
np.savez(
    f"{folder}/fresh.npz",
    keras=model.predict(texts, verbose=0),
    preset=again.predict(texts, verbose=0),
    labels=again.labels,
)
"""


@pytest.mark.slow
def test_fresh_process_without_custom_objects(make_classifier, tmp_path):
    model = make_classifier()
    add_noise(model)
    model.save(tmp_path / "model.keras")
    model.save_to_preset(tmp_path / "preset")
    subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, tmp_path],
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )
    fresh = np.load(tmp_path / "fresh.npz")
    assert fresh["labels"].tolist() == LABELS
    expected = model.predict(["Attention heads.", "", "中 é"], verbose=0)
    for name in ("keras", "preset"):
        np.testing.assert_allclose(fresh[name], expected, atol=1e-6)


@pytest.mark.any_backend
def test_preset_of_other_classes_and_tasks(make_classifier, inputs, tmp_path):
    model = make_classifier(pooling_mode="mean")
    add_noise(model)
    model.save_to_preset(tmp_path / "one")
    # Other classes: a new head, with names of its own or none.
    other = FixedHeadTextClassifier.from_preset(
        str(tmp_path / "one"), num_classes=5
    )
    assert other(inputs).shape == (5, 5)
    assert other.labels is None and other.pooling_mode == "mean"
    expected = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    np.testing.assert_allclose(
        other.backbone(inputs)["sequence_output"], expected, atol=1e-6
    )
    # Its encoder embeds, and that of an embedder classifies.
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "one"))
    np.testing.assert_allclose(
        embedder.backbone(inputs)["sequence_output"], expected, atol=1e-6
    )
    embedder.save_to_preset(tmp_path / "two")
    third = FixedHeadTextClassifier.from_preset(
        str(tmp_path / "two"), num_classes=2, labels=["a", "b"]
    )
    assert third.labels == ["a", "b"]
    # As long as the encoder allows.
    assert third.preprocessor(["a"])["token_ids"].shape == (1, 17)
    np.testing.assert_allclose(
        third.backbone(inputs)["sequence_output"], expected, atol=1e-6
    )


def test_pairs_by_hand(make_classifier, vocabulary):
    preprocessor = make_classifier().preprocessor
    first, second = ["attention heads", "中"], ["a, b.", ""]
    batch = {
        name: ops.convert_to_numpy(values).astype(int)
        for name, values in preprocessor((first, second), y=None).items()
    }
    rows = [
        "[CLS] attention head ##s [SEP] a , b . [SEP]".split(),
        "[CLS] 中 [SEP] [SEP]".split(),
    ]
    for number, row in enumerate(rows):
        size = len(row)
        found = [vocabulary[i] for i in batch["token_ids"][number]]
        assert found == row + ["[PAD]"] * (13 - size)
        assert batch["padding_mask"][number].tolist() == [1] * size + [0] * (
            13 - size
        )
    assert batch["segment_ids"].tolist() == [
        [0] * 5 + [1] * 5 + [0] * 3,
        [0] * 3 + [1] + [0] * 9,
    ]


def random_texts(rng, count):
    return [
        " ".join(rng.choice(list("abcdefg"), rng.integers(0, 17)))
        for _ in range(count)
    ]


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graph operations"
)
@pytest.mark.parametrize("truncate", ["round_robin", "waterfall"])
def test_pad_to_longest(vocabulary, truncate):
    rng = np.random.default_rng(0)
    first, second = random_texts(rng, 97), random_texts(rng, 97)
    for length in (4, 5, 12, 13, 37):
        preprocessor = FixedHeadTextClassifierPreprocessor(
            FixedHeadTokenizer(vocabulary),
            sequence_length=length,
            truncate=truncate,
        )
        for given, texts in (
            ((first, second), (first, second)),
            (first, (first,)),
        ):
            expected = {
                name: ops.convert_to_numpy(values)
                for name, values in preprocessor(given, y=None).items()
            }
            longest = int(expected["padding_mask"].sum(axis=1).max())
            batch = preprocessor.pad_to_longest(*texts)
            assert batch.keys() == expected.keys()
            for name, values in batch.items():
                assert values.dtype == "int32"
                np.testing.assert_array_equal(
                    values, expected[name][:, :longest]
                )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graph operations"
)
def test_pad_to_longest_limits(make_classifier):
    preprocessor = make_classifier().preprocessor
    long = ["a b c d e f g h i j k"]
    assert preprocessor.pad_to_longest(long)["token_ids"].shape == (1, 13)
    for limit in (7, 29):
        ids = preprocessor.pad_to_longest(long, long, sequence_length=limit)
        assert ids["token_ids"].shape == (1, min(limit, 13))
    # Rows no longer than they have to be.
    short = preprocessor.pad_to_longest(["a", ""], ["b c", ""])
    assert short["padding_mask"].numpy().tolist() == [
        [1] * 6,
        [1] * 3 + [0] * 3,
    ]
    with pytest.raises(ValueError, match="over 3, the special .*=3"):
        preprocessor.pad_to_longest(long, long, sequence_length=3)
    with pytest.raises(ValueError, match="over 2, the special .*=2"):
        preprocessor.pad_to_longest(long, sequence_length=2)


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
