"""Answers in contexts: the head in NumPy, lengths, and what it learns."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadSpanLabeler
from keras_fixedhead.context_windows import decode
from tests import tiny_models


@pytest.fixture(scope="module")
def make_labeler(make_task):
    def make(head_dropout=0.1, **backbone):
        return make_task(
            FixedHeadSpanLabeler,
            backbone=backbone,
            preprocessor={"document_stride": 3, "max_question_length": 2},
            dropout=head_dropout,
        )

    return make


def test_equals_numpy(make_labeler, inputs):
    model = tiny_models.add_noise(make_labeler())
    x = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    kernel, bias = model.span_dense.get_weights()
    assert kernel.shape == (11, 2)
    real = inputs["padding_mask"] == 1
    assert not real[2].any()
    for outputs in (
        model(inputs),
        model.label_packed(tiny_models.tensors(inputs)),
    ):
        assert set(outputs) == {"start", "end"}
        outputs = tiny_models.as_numpy(outputs)
        for i, logits in enumerate((outputs["start"], outputs["end"])):
            assert logits.shape == (5, 13)
            np.testing.assert_allclose(
                logits[real], x[real] @ kernel[:, i] + bias[i], atol=1e-5
            )
            assert (logits[~real] == -1e9).all()


@pytest.mark.any_backend
def test_lengths_of_another_tasks_preset(make_embedder, tmp_path):
    """As long as the encoder allows, in BERT's proportions."""
    make_embedder().save_to_preset(str(tmp_path))
    model = FixedHeadSpanLabeler.from_preset(str(tmp_path))
    preprocessor = model.preprocessor
    assert preprocessor.sequence_length == 17
    assert preprocessor.document_stride == 5
    assert preprocessor.max_question_length == 2
    windows = preprocessor.windows("a b", "c " * 23)
    assert model(preprocessor.pad(windows))["start"].shape == (4, 17)


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
    logits = tiny_models.as_numpy(model(model.preprocessor.pad(windows)))
    best, *_ = decode(logits["start"], logits["end"], windows)
    assert best.text == "a d b" and (best.start, best.end) == (4, 9)
    whole = model.predict((["h"], ["g c a d b e"]), verbose=0)
    np.testing.assert_allclose(whole["start"], logits["start"], atol=1e-5)
