"""The report as a command, as a picture and in TensorBoard."""

import dataclasses
import json
import re

import keras
import matplotlib.image
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
    draw_attention_report,
)
from keras_fixedhead.diagnostics.__main__ import main
from keras_fixedhead.diagnostics.report import METRICS

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def embedder(make_embedder):
    return make_embedder(head_size=[3, 6])


@pytest.fixture(scope="module")
def preset(embedder, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("preset"))
    embedder.save_to_preset(folder)
    return folder


@pytest.fixture
def files(tmp_path):
    (tmp_path / "texts.txt").write_text("a b c\n\nattention\nhead . , a b\n")
    (tmp_path / "texts.jsonl").write_text(
        '{"_id": 3, "text": "a b"}\n{"text": 3}\n'
    )
    (tmp_path / "empty.txt").write_text("\n\n")
    return tmp_path


def names(folder):
    return {path.name for path in folder.iterdir()}


def run_json(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_figures_and_picture(preset, embedder, files, capsys):
    report = attention_report(embedder, ["a b c", "attention"])
    arguments = ["--model", preset, "--texts", str(files / "texts.txt")]
    arguments += ["--count", "2"]
    expected = json.loads(json.dumps(dataclasses.asdict(report)))
    for row in expected["heads"] + expected["layers"]:
        if not np.isfinite(row["condition_number"]):
            row["condition_number"] = None
    assert run_json(capsys, *arguments) == expected

    before = names(files)
    picture = files / "report.png"
    assert main([*arguments, "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "2 sequences of 4.0 tokens, the longest of 5" in out
    assert "3 of 6 heads are smaller" in out
    assert f"wrote {picture}" in out
    assert matplotlib.image.imread(picture).std() > 0
    assert names(files) == before | {"report.png"}


def test_json_lines(preset, files, capsys):
    arguments = ["--model", preset, "--texts", str(files / "texts.jsonl")]
    one = [*arguments, "--count", "1"]
    report = run_json(capsys, *one)
    assert report["sequences"] == 1
    assert report["heads"][0]["longest_length"] == 4
    report = run_json(capsys, *one, "--sequence_length", "3")
    assert report["heads"][0]["longest_length"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--sequence_length": "18"}, "from 3 to 17.*length=18"),
        ({"--model": "nowhere"}, "nowhere"),
        ({"--texts": "empty.txt"}, "a text per line.*empty.txt"),
        ({"--texts": "texts.jsonl"}, "texts.jsonl:2: 'text'"),
        ({"--output": "picture.what"}, "must end in one of.*what"),
    ],
)
def test_what_is_wrong_is_named(
    preset, files, capsys, monkeypatch, change, message
):
    monkeypatch.chdir(files)
    before = names(files)
    arguments = {"--model": preset, "--texts": "texts.txt", **change}
    assert main([x for pair in arguments.items() for x in pair]) == 1
    error = capsys.readouterr().err
    assert error.startswith("keras_fixedhead.diagnostics: error: ")
    assert re.search(message, error, re.DOTALL)
    assert names(files) == before


def test_the_picture_shows_the_figures(make_backbone, inputs, monkeypatch):
    report = attention_report(make_backbone(head_size=[[2, 5, 17], 7]), inputs)
    heads = list(report.heads)
    heads[4] = dataclasses.replace(heads[4], condition_number=np.inf)
    report = dataclasses.replace(report, heads=tuple(heads))
    drawn = []
    monkeypatch.setattr(
        "keras_fixedhead.diagnostics.report.save_figure",
        lambda figure, output: drawn.extend(figure.axes),
    )
    draw_attention_report(report, "report.png")
    axes = [axis for axis in drawn if axis.get_xlabel() == "head"]
    drawn_names = [METRICS[i] for i in (1, 3, 4, 5)]
    for axis, name in zip(axes, drawn_names, strict=True):
        [image] = axis.get_images()
        expected = np.array([getattr(x, name) for x in report.heads])
        if name == "condition_number":
            expected = np.log10(np.where(np.isinf(expected), np.nan, expected))
        values = np.ma.filled(image.get_array().astype(float), np.nan)
        np.testing.assert_allclose(values.ravel(), expected)
        # Small heads have a cross, the one of 17 has none.
        [crosses] = axis.collections
        marked = {tuple(map(int, place)) for place in crosses.get_offsets()}
        assert marked == {(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)}


@pytest.fixture
def model():
    x = keras.Input((7, 5))
    attended = FixedMultiHeadAttention(2, head_size=[3, 11], name="first")(x)
    attended = keras.layers.MultiHeadAttention(3, 2)(attended, attended)
    return keras.Model(x, attended)


@pytest.fixture
def sequences():
    return np.random.default_rng(0).normal(size=(4, 7, 5)).astype("float32")


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_what_is_written_is_the_report(model, sequences, tmp_path):
    summaries = AttentionSummaries(tmp_path / "logs", model, sequences)
    report = summaries.write(17)
    summaries.close()
    assert report == attention_report(model, sequences)
    events = read(tmp_path / "logs")
    expected = {"attention/bottlenecked_heads": 4}
    for layer in report.layers:
        place, rows = f"layer_0{layer.layer}", report.heads_of(layer.layer)
        for name in METRICS[:-1]:
            expected[f"attention_{name}/{place}"] = np.mean(
                [getattr(row, name) for row in rows]
            )
        condition = layer.condition_number
        expected[f"attention_condition_number/{place}"] = condition
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


def test_callback(model, sequences, tmp_path):
    # Keras calls back after the third and the sixth update.
    model.compile("sgd", "mse", steps_per_execution=3, jit_compile=False)
    callback = AttentionReportCallback(sequences, tmp_path, every=2)
    before = attention_report(model, sequences)
    # Three updates an epoch, the last of a batch of one.
    x = np.concatenate([sequences, sequences])[:5]
    fit = {"batch_size": 2, "epochs": 2, "verbose": 0}
    model.fit(x, 3.0 * x, callbacks=[callback], **fit)
    after = attention_report(model, sequences)
    assert after != before
    events = read(tmp_path).Scalars("attention_entropy/layer_00")
    assert [event.step for event in events] == [0, 3, 6]
    for event, report in ((events[0], before), (events[-1], after)):
        entropy = np.mean([head.entropy for head in report.heads_of(0)])
        assert event.value == pytest.approx(entropy, rel=1e-5)


def test_a_callback_counts_on(sequences, tmp_path):
    """`fit` called again; a model that is built by its first batch."""
    sequential = keras.Sequential(
        [keras.layers.Dense(5), FixedMultiHeadAttention(2, head_size=3)]
    )
    sequential.compile("sgd", "mse", run_eagerly=True)
    callback = AttentionReportCallback(sequences, tmp_path, every=2)
    x = sequences[:3]
    for _ in range(2):
        sequential.fit(x, x, batch_size=1, verbose=0, callbacks=[callback])
    events = read(tmp_path).Scalars("attention_entropy/layer_00")
    # Keras on JAX has built it before the first batch.
    assert {event.step for event in events} - {0} == {2, 3, 4, 6}
