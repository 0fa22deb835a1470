"""Answers in contexts: the head in NumPy, packed, every way to save it."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadSpanLabeler,
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from keras_fixedhead.context_windows import decode

# KerasHub's Task compiles itself when it is made.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)


@pytest.fixture
def make_labeler(vocabulary, make_backbone):
    def make(head_dropout=0.1, **arguments):
        return FixedHeadSpanLabeler(
            make_backbone(**arguments),
            FixedHeadSpanLabelerPreprocessor(
                FixedHeadTokenizer(vocabulary),
                sequence_length=13,
                document_stride=3,
                max_question_length=2,
            ),
            dropout=head_dropout,
        )

    return make


def add_noise(model):
    """Biases and norms start where an error would not show."""
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        noise = rng.normal(size=variable.shape)
        variable.assign_add(0.1 * noise.astype("float32"))


def as_numpy(outputs):
    return {name: ops.convert_to_numpy(x) for name, x in outputs.items()}


def test_equals_numpy(make_labeler, inputs):
    model = make_labeler()
    add_noise(model)
    outputs = as_numpy(model(inputs))
    x = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    kernel, bias = model.span_dense.get_weights()
    assert kernel.shape == (11, 2)
    real = inputs["padding_mask"] == 1
    assert set(outputs) == {"start", "end"}
    for i, logits in enumerate((outputs["start"], outputs["end"])):
        assert logits.shape == (5, 13) and logits.dtype == "float32"
        np.testing.assert_allclose(
            logits[real], x[real] @ kernel[:, i] + bias[i], atol=1e-6
        )
        assert (logits[~real] == -1e9).all()


@pytest.mark.parametrize("fixed_size", [False, True])
def test_packed_equals_padded(make_labeler, inputs, fixed_size):
    model = make_labeler()
    add_noise(model)
    tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
    padded = as_numpy(model(tensors))
    packed = as_numpy(model.label_packed(tensors, fixed_size=fixed_size))
    assert packed.keys() == padded.keys()
    for name, logits in padded.items():
        np.testing.assert_allclose(packed[name], logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "encoder"), [(0.5, 0.0), (0.0, 0.5), (0.0, 0.0)]
)
def test_dropout_is_for_training(make_labeler, inputs, head, encoder):
    model = make_labeler(head_dropout=head, dropout=encoder)
    tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
    real = inputs["padding_mask"] == 1
    for label in (model, model.label_packed):
        one, other, dropped = (
            as_numpy(label(tensors, training=training))["end"][real]
            for training in (False, False, True)
        )
        np.testing.assert_array_equal(one, other)
        assert (abs(dropped - one).max() > 1e-3) == (head + encoder > 0)


def test_a_row_without_tokens(make_labeler, inputs):
    assert not inputs["padding_mask"][2].any()
    logits = as_numpy(make_labeler()(inputs))["start"]
    assert np.isfinite(logits).all()


def test_unknown_argument_is_an_error(make_backbone):
    with pytest.raises(TypeError, match="SpanLabeler has no argument `rate`"):
        FixedHeadSpanLabeler(make_backbone(), rate=0.3)


@pytest.mark.any_backend
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_bfloat16(make_labeler, inputs, policy):
    exact, half = make_labeler(), make_labeler(dtype=policy)
    half.set_weights(exact.get_weights())
    assert half.span_dense.compute_dtype == "bfloat16"
    real = inputs["padding_mask"] == 1
    expected = as_numpy(exact(inputs))
    tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
    for outputs in (half(inputs), half.label_packed(tensors)):
        for name, logits in as_numpy(outputs).items():
            assert logits.dtype == "float32"
            np.testing.assert_allclose(
                logits[real], expected[name][real], atol=0.03
            )
            assert (logits[~real] == np.float32(-1e9)).all()


@pytest.mark.any_backend
def test_float64(float64, make_labeler, inputs):
    outputs = as_numpy(make_labeler(dtype="float64")(inputs))
    assert {x.dtype for x in outputs.values()} == {np.dtype("float64")}


def test_get_config(make_labeler):
    model = make_labeler(head_dropout=0.3)
    again = FixedHeadSpanLabeler.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert again.dropout == again.span_dropout.rate == 0.3
    assert again.preprocessor.document_stride == 3


def assert_same_model(again, model, inputs):
    for one, other in zip(again.weights, model.weights, strict=True):
        assert one.path == other.path
    expected = as_numpy(model(inputs))
    for name, logits in as_numpy(again(inputs)).items():
        np.testing.assert_allclose(logits, expected[name], atol=1e-6)
    ours, theirs = again.preprocessor, model.preprocessor
    for name in ("sequence_length", "document_stride", "max_question_length"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.tokenizer.get_vocabulary() == theirs.tokenizer.get_vocabulary()


def test_keras_file(make_labeler, inputs, tmp_path):
    model = make_labeler()
    add_noise(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same_model(again, model, inputs)
    assert again.dropout == model.dropout


def test_preset(make_labeler, inputs, tmp_path):
    model = make_labeler()
    add_noise(model)
    model.save_to_preset(tmp_path)
    again = FixedHeadSpanLabeler.from_preset(str(tmp_path))
    assert_same_model(again, model, inputs)
    # The encoder, in another task.
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    np.testing.assert_allclose(
        embedder.backbone(inputs)["sequence_output"],
        model.backbone(inputs)["sequence_output"],
        atol=1e-6,
    )


@pytest.mark.any_backend
def test_preset_of_another_task(make_embedder, inputs, tmp_path):
    embedder = make_embedder()
    embedder.save_to_preset(tmp_path)
    model = FixedHeadSpanLabeler.from_preset(str(tmp_path))
    np.testing.assert_allclose(
        model.backbone(inputs)["sequence_output"],
        embedder.backbone(inputs)["sequence_output"],
        atol=1e-6,
    )
    # As long as the encoder allows, in BERT's proportions.
    preprocessor = model.preprocessor
    assert preprocessor.sequence_length == 17
    assert preprocessor.document_stride == 5
    assert preprocessor.max_question_length == 2
    windows = preprocessor.windows("a b", "c " * 23)
    logits = as_numpy(model(preprocessor.pad(windows)))
    assert logits["start"].shape == (4, 17)


FRESH_PROCESS = """
import sys
import keras
import numpy as np
import keras_fixedhead
model = keras_fixedhead.FixedHeadSpanLabeler.from_preset(sys.argv[1])
windows = model.preprocessor.windows("a", "b c d e f g h head, heads")
logits = model(model.preprocessor.pad(windows))
logits = {name: keras.ops.convert_to_numpy(x) for name, x in logits.items()}
np.savez(f"{sys.argv[1]}/fresh.npz", **logits)
"""


@pytest.mark.slow
def test_preset_in_a_fresh_process(make_labeler, tmp_path):
    model = make_labeler()
    model.save_to_preset(tmp_path)
    subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, tmp_path],
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )
    windows = model.preprocessor.windows("a", "b c d e f g h head, heads")
    logits = as_numpy(model(model.preprocessor.pad(windows)))
    fresh = np.load(tmp_path / "fresh.npz")
    assert len(windows) > 1
    for name, expected in logits.items():
        np.testing.assert_allclose(fresh[name], expected, atol=1e-6)


@pytest.mark.slow
def test_learns_to_answer(make_labeler):
    """The answer is from the one letter to the other."""
    rng = np.random.default_rng(0)
    contexts, starts, ends = [], [], []
    for _ in range(640):
        order = rng.permutation(list("abcdefg")).tolist()
        start, end = sorted((order.index("a"), order.index("b")))
        order[start], order[end] = "a", "b"
        contexts.append(" ".join(order))
        starts.append(3 + start)
        ends.append(3 + end)
    model = make_labeler(head_dropout=0.0, dropout=0.0, num_layers=1)
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    history = model.fit(
        (["h"] * 640, contexts),
        {"start": np.array(starts), "end": np.array(ends)},
        batch_size=32,
        epochs=2,
        verbose=0,
        shuffle=False,
    ).history["loss"]
    # Half of two cross entropies, each over 11 tokens at first.
    assert history[-1] < 0.5 * history[0] < 0.5 * np.log(11)
    windows = model.preprocessor.windows("h", "g c a d b e")
    logits = as_numpy(model(model.preprocessor.pad(windows)))
    best, *_ = decode(logits["start"], logits["end"], windows)
    assert best.text == "a d b" and (best.start, best.end) == (4, 9)
    whole = model.predict((["h"], ["g c a d b e"]), verbose=0)
    np.testing.assert_allclose(whole["start"], logits["start"], atol=1e-5)
