"""The picture of runs: every figure, of one run or of several."""

import json

import pytest

from training.curves import main

RECORDS = [
    {"step": 2, "loss": 5.0, "learning_rate": 0.1, "tokens_per_second": 7},
    {"step": 4, "loss": 3.0, "learning_rate": 0.2, "tokens_per_second": 7},
    {"step": 4, "heldout_loss": 4.0, "heldout_recall_at_1": 0.5},
]


def write_run(workdir):
    """Figures of a run; the last line is being written."""
    workdir.mkdir()
    lines = [json.dumps(record) + "\n" for record in RECORDS]
    (workdir / "metrics.jsonl").write_text("".join(lines) + '{"step": 10, "lo')
    return workdir


def lines(figure):
    """By panel, the labels of its lines and their values."""
    return {
        axis.get_title(): {
            line.get_label(): (*line.get_xdata(), *line.get_ydata())
            for line in axis.lines
            if not line.get_label().startswith("_")
        }
        for axis in figure.axes
    }


def test_draws_every_figure(tmp_path, drawn, capsys):
    one = write_run(tmp_path / "one")
    assert main([str(one)]) == 0
    assert capsys.readouterr().out == f"wrote {one / 'curves.png'}\n"
    assert (one / "curves.png").stat().st_size > 1000
    assert list(map(lines, drawn)) == [
        {
            "loss": {"training": (2, 4, 5.0, 3.0), "held out": (4, 4.0)},
            "learning rate": {"training": (2, 4, 0.1, 0.2)},
            "recall at 1": {"held out": (4, 0.5)},
        }
    ]


def test_draws_runs_side_by_side(tmp_path, drawn):
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two")
    both = tmp_path / "both.png"
    assert main([str(one), str(two), "--output", str(both)]) == 0
    assert both.exists()
    kinds = ("training", "held out")
    labels = {f"{run} {kind}" for run in (one, two) for kind in kinds}
    assert lines(drawn[0])["loss"].keys() == labels


@pytest.mark.parametrize(
    ("workdir", "output", "message"),
    [
        ("none", "a.png", "No such file or directory: '{}/none/metrics.jsonl'"),
        ("empty", "a.png", "{}/empty/metrics.jsonl has no figures yet"),
        ("one", "a.what", "must end in one of"),
    ],
)
def test_errors_leave_nothing(tmp_path, capsys, workdir, output, message):
    write_run(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").write_text("")
    args = [str(tmp_path / workdir), "--output", str(tmp_path / output)]
    assert main(args) == 1
    error = capsys.readouterr().err
    assert error.startswith("training.curves: error: ")
    assert message.format(tmp_path) in error
    assert {path.name for path in tmp_path.iterdir()} == {"one", "empty"}
