"""Attention reports in TensorBoard, read back as TensorBoard reads them."""

import builtins

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from keras_fixedhead import FixedMultiHeadAttention
from keras_fixedhead.diagnostics import (
    AttentionReportCallback,
    AttentionSummaries,
    attention_report,
)


@pytest.fixture
def model():
    x = keras.Input((7, 5))
    attended = FixedMultiHeadAttention(2, head_size=[3, 11], name="first")(x)
    attended = keras.layers.MultiHeadAttention(3, 2)(attended, attended)
    return keras.Model(x, attended)


@pytest.fixture
def inputs():
    return np.random.default_rng(0).normal(size=(4, 7, 5)).astype("float32")


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_what_is_written_is_the_report(model, inputs, tmp_path):
    summaries = AttentionSummaries(tmp_path / "logs", model, inputs)
    report = summaries.write(17)
    summaries.close()
    assert report == attention_report(model, inputs)
    events = read(tmp_path / "logs")
    expected = {"attention/bottlenecked_heads": 4}
    for layer in (0, 1):
        place, heads = f"layer_0{layer}", report.heads_of(layer)
        for name in (
            "logit_rank",
            "logit_effective_rank",
            "attention_rank",
            "attention_effective_rank",
            "entropy",
        ):
            expected[f"attention_{name}/{place}"] = np.mean(
                [getattr(head, name) for head in heads]
            )
        expected[f"attention_condition_number/{place}"] = report.layers[
            layer
        ].condition_number
    found = {}
    for tag in events.Tags()["scalars"]:
        [event] = events.Scalars(tag)
        assert event.step == 17
        found[tag] = event.value
    assert found.pop("attention/seconds") > 0
    assert found == pytest.approx(expected, rel=1e-6)
    [image] = events.Images("attention")
    assert image.step == 17
    assert image.encoded_image_string.startswith(b"\x89PNG")
    size = np.frombuffer(image.encoded_image_string[16:24], ">u4")
    assert (image.width, image.height) == tuple(size)


@pytest.mark.any_backend
def test_curves_without_matplotlib(model, inputs, tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    summaries = AttentionSummaries(tmp_path, model, inputs)
    summaries.write(0)
    summaries.close()
    tags = read(tmp_path).Tags()
    assert tags["images"] == []
    assert "attention_entropy/layer_01" in tags["scalars"]


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("every", "at_once", "steps"),
    [
        pytest.param(4, 1, [0, 4, 6], marks=pytest.mark.slow),
        # Keras calls back after the third and the sixth update.
        (2, 3, [0, 3, 6]),
    ],
)
def test_callback(model, inputs, tmp_path, every, at_once, steps):
    model.compile("sgd", "mse", steps_per_execution=at_once)
    callback = AttentionReportCallback(inputs, tmp_path, every=every)
    before = attention_report(model, inputs)
    # Three updates an epoch, the last of a batch of one.
    x = np.concatenate([inputs, inputs])[:5]
    fit = {"batch_size": 2, "epochs": 2, "verbose": 0}
    model.fit(x, 3.0 * x, callbacks=[callback], **fit)
    after = attention_report(model, inputs)
    assert after != before
    events = read(tmp_path).Scalars("attention_entropy/layer_00")
    assert [event.step for event in events] == steps
    for event, report in ((events[0], before), (events[-1], after)):
        entropy = np.mean([head.entropy for head in report.heads_of(0)])
        assert event.value == pytest.approx(entropy, rel=1e-5)


@pytest.mark.any_backend
def test_a_callback_counts_on(inputs, tmp_path):
    """`fit` called again; a model that is built by its first batch."""
    sequential = keras.Sequential(
        [keras.layers.Dense(5), FixedMultiHeadAttention(2, head_size=3)]
    )
    sequential.compile("sgd", "mse")
    for _ in range(2):
        callback = AttentionReportCallback(inputs, tmp_path, every=2)
        sequential.fit(
            inputs[:3], inputs[:3], 1, verbose=0, callbacks=[callback]
        )
    events = read(tmp_path).Scalars("attention_entropy/layer_00")
    # Keras on JAX has built it before the first batch.
    assert {event.step for event in events} - {0} == {2, 3, 4, 6}


def test_numbers_that_make_no_sense(inputs, tmp_path):
    with pytest.raises(ValueError, match="`every` must be.*every=0"):
        AttentionReportCallback(inputs, tmp_path, every=0)
