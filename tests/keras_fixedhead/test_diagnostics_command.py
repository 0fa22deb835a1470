"""The report as a command, and as a picture."""

import dataclasses
import json
import re

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest

from keras_fixedhead.diagnostics import (
    attention_report,
    draw_attention_report,
)
from keras_fixedhead.diagnostics.__main__ import main
from keras_fixedhead.diagnostics.report import attention_figure

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
    for kind in ("heads", "layers"):
        for head in expected[kind]:
            if not np.isfinite(head["condition_number"]):
                head["condition_number"] = None
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
    assert main(arguments) == 1
    assert '"text". Received' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--sequence_length": "2"}, "over 2 .* most 17, .*Received: 2"),
        ({"--sequence_length": "18"}, "over 2 .* most 17, .*Received: 18"),
        ({"--count": "0"}, "`count` must be a positive integer"),
        ({"--model": "nowhere"}, "`model` must be a preset folder.*nowhere"),
        ({"--texts": "nothing.txt"}, "No such file.*nothing.txt"),
        ({"--texts": "empty.txt"}, "a text per line.*without any"),
        ({"--output": "picture.what"}, "must end in one of.*what"),
        (
            {"--output": "no/folder/picture.png"},
            "a folder that exists.*no/fold",
        ),
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
    assert re.search(message, error)
    assert names(files) == before


def test_the_picture_shows_the_figures(make_backbone, inputs):
    report = attention_report(make_backbone(head_size=[[2, 5, 17], 7]), inputs)
    heads = list(report.heads)
    heads[4] = dataclasses.replace(heads[4], condition_number=np.inf)
    report = dataclasses.replace(report, heads=tuple(heads))
    axes = [
        axis
        for axis in attention_figure(report).axes
        if axis.get_xlabel() == "head"
    ]
    names = (
        "logit_effective_rank",
        "attention_effective_rank",
        "entropy",
        "condition_number",
    )
    for axis, name in zip(axes, names, strict=True):
        [image] = axis.get_images()
        expected = np.array([getattr(x, name) for x in report.heads])
        if name == "condition_number":
            expected = np.log10(np.where(np.isinf(expected), np.nan, expected))
        drawn = np.ma.filled(image.get_array().astype(float), np.nan)
        np.testing.assert_allclose(drawn.ravel(), expected)
        # Small heads have a cross, the one of 17 has none.
        [crosses] = axis.collections
        marked = {tuple(map(int, place)) for place in crosses.get_offsets()}
        assert marked == {(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)}


def test_a_picture_is_written_whole_or_not(
    make_backbone, inputs, tmp_path, monkeypatch
):
    report = attention_report(make_backbone(), inputs)

    def fail(figure, path, **arguments):
        path.write_bytes(b"half")
        raise OSError("no space")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space"):
        draw_attention_report(report, tmp_path / "report.png")
    assert not list(tmp_path.iterdir())
