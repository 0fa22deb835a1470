"""Figures of runs beside their shapes: over seeds, as a table and a picture."""

import json

import pytest

from keras_fixedhead import FixedHeadBackbone
from training import accuracy_report
from training.accuracy_report import read_row
from training.engine.records import SUMMARY, summarize

SHAPE = {
    "vocabulary_size": 101,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 12,
    "intermediate_dim": 17,
    "max_sequence_length": 13,
}


def write_run(folder, figures, **changes):
    """What a finished run leaves, of which the report reads a part."""
    preset = folder / "preset"
    preset.mkdir(parents=True)
    config = {"config": {**SHAPE, **changes, "name": "encoder"}}
    (preset / "config.json").write_text(json.dumps(config))
    run = {"settings": {}, "figures": {"step": 7, **figures}}
    (preset / "run.json").write_text(json.dumps(run))
    return folder


def write_seeds(folder, values, **changes):
    runs = {}
    for seed, value in enumerate(values, start=3):
        figures = {"accuracy": value, "heldout_loss_dev": 1.0}
        runs[seed] = write_run(folder / f"seed_{seed}", figures, **changes)
    (folder / SUMMARY).write_text(json.dumps(summarize(runs)))
    return folder


def test_parameters_are_the_encoder_s(tmp_path):
    row = read_row(write_run(tmp_path / "run", {"f1": 1.0}, head_size=[5, 7]))
    backbone = FixedHeadBackbone(**SHAPE, head_size=[5, 7])
    assert row["parameters"] == backbone.count_params()
    assert (row["seeds"], row["figures"]["f1"]["deviation"]) == (1, None)


@pytest.mark.parametrize(
    ("head_size", "fixed"),
    [(4, False), (13, True), (None, True), ([4, 5], True), ([4, 4], False)],
)
def test_heads_of_the_standard_size_are_told_apart(tmp_path, head_size, fixed):
    row = read_row(write_run(tmp_path, {"f1": 1.0}, head_size=head_size))
    assert row["heads"].startswith("fixed") == fixed


def test_reports(tmp_path, capsys, monkeypatch, drawn):
    monkeypatch.setenv("COLUMNS", "120")
    runs = [
        write_seeds(tmp_path / "small", [0.5, 0.75], head_size=4),
        write_seeds(tmp_path / "middle", [0.25, 0.5], head_size=7),
        write_run(
            tmp_path / "large",
            {"accuracy": 0.9, "heldout_loss_dev": 0.5, "other": 1.0},
            head_size=13,
        ),
    ]
    output = tmp_path / "new" / "report"
    args = [*map(str, runs[::-1]), "--output", str(output)]
    assert accuracy_report.main(args) == 0
    said = capsys.readouterr().out
    assert "0.6250 ± 0.1768" in said and "0.9000" in said
    rows = json.loads((output / "report.json").read_text())
    # By size, and only what all have and is no loss.
    assert [row["run"] for row in rows] == list(map(str, runs))
    assert [row["seeds"] for row in rows] == [2, 2, 1]
    assert [list(row["figures"]) for row in rows] == [["accuracy"]] * 3
    assert (output / "report.png").read_bytes().startswith(b"\x89PNG")
    ((axis,),) = (figure.axes for figure in drawn)
    fixed, standard = (line.lines[0] for line in axis.containers)
    sizes = [row["parameters"] / 1e6 for row in rows]
    for line, x, means in (
        (standard, sizes[:1], [0.625]),
        (fixed, sizes[1:], [0.375, 0.9]),
    ):
        assert line.get_xdata() == pytest.approx(x)
        assert line.get_ydata() == pytest.approx(means)


def test_the_picture_names_shapes_and_the_largest_difference(tmp_path, drawn):
    runs = []
    for dimension, head_size, accuracy in (
        (12, 4, 0.5),
        (12, 5, 0.6),  # nearly as many parameters: one label for both
        (24, 8, 0.75),
        (24, 101, 0.5),
    ):
        changes = {"hidden_dim": dimension, "head_size": head_size}
        run = tmp_path / f"{dimension}_{head_size}"
        runs.append(write_run(run, {"accuracy": accuracy}, **changes))
    args = [*map(str, runs), "--output", str(tmp_path / "report")]
    assert accuracy_report.main(args) == 0
    ((axis,),) = (figure.axes for figure in drawn)
    labels = [text.get_text() for text in axis.texts]
    assert labels == ["d = 12", "d = 24", "d = 24"]
    assert axis.get_title() == "Fixed heads differ most at d = 24: -0.250"
    assert axis.get_ylabel() == "Accuracy (fraction right)"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing"], "must be work directories of finished runs"),
        (["run", "--figures", "f1"], "Received: f1"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", {"accuracy": 0.5})
    assert accuracy_report.main([*args, "--output", "report"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "report").exists()
