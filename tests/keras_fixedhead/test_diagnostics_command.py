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


@pytest.fixture
def preset(make_embedder, tmp_path):
    embedder = make_embedder(head_size=[3, 6])
    embedder.save_to_preset(str(tmp_path / "preset"))
    return tmp_path / "preset", embedder


def test_figures_and_picture(preset, tmp_path, capsys):
    folder, embedder = preset
    texts = tmp_path / "texts.txt"
    texts.write_text("a b c\n\nattention\nhead . , a b\n", encoding="utf-8")
    report = attention_report(embedder, ["a b c", "attention"])
    arguments = ["--model", str(folder), "--texts", str(texts), "--count", "2"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = json.loads(json.dumps(dataclasses.asdict(report)))
    for kind in ("heads", "layers"):
        for head in expected[kind]:
            if not np.isfinite(head["condition_number"]):
                head["condition_number"] = None
    assert printed == expected

    picture = tmp_path / "report.png"
    assert main([*arguments, "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "2 sequences of 4.0 tokens, the longest of 5" in out
    assert "3 of 6 heads are smaller" in out
    assert f"wrote {picture}" in out
    assert matplotlib.image.imread(picture).std() > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "preset",
        "report.png",
        "texts.txt",
    ]


def test_json_lines(preset, tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"_id": 3, "text": "a b"}\n{"text": 3}\n', "utf-8")
    arguments = ["--model", str(preset[0]), "--texts", str(texts)]
    one = [*arguments, "--count", "1", "--json"]
    assert main(one) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sequences"] == 1
    assert report["heads"][0]["longest_length"] == 4
    assert main([*one, "--sequence_length", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
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
    preset, tmp_path, capsys, monkeypatch, change, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a b\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments = {"--model": "preset", "--texts": "texts.txt", **change}
    assert main([x for pair in arguments.items() for x in pair]) == 1
    error = capsys.readouterr().err
    assert error.startswith("keras_fixedhead.diagnostics: error: ")
    assert re.search(message, error)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


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
