"""The picture of runs: every figure, of one run or of several."""

import json

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest

from training.curves import draw_curves, main


def write_run(workdir, loss):
    """Figures of a run; the last line is being written."""
    workdir.mkdir()
    records = [{"step": i, "loss": loss / i} for i in range(1, 10)]
    records.append({"step": 9, "heldout_loss": loss, "examples_per_second": 7})
    lines = [json.dumps(record) + "\n" for record in records]
    (workdir / "metrics.jsonl").write_text("".join(lines) + '{"step": 10, "lo')
    return workdir


def colors(path):
    picture = matplotlib.image.imread(path)[..., :3]
    return {tuple(c) for c in np.round(picture.reshape(-1, 3) * 255)}


BLUE, ORANGE = (31, 119, 180), (255, 127, 14)  # of the first and second run


def test_draws_runs_side_by_side(tmp_path, capsys):
    one, two = write_run(tmp_path / "one", 1), write_run(tmp_path / "two", 2)
    assert main([str(one)]) == 0
    assert capsys.readouterr().out == f"wrote {one / 'curves.png'}\n"
    assert {BLUE} <= colors(one / "curves.png")
    assert ORANGE not in colors(one / "curves.png")
    both = tmp_path / "both.png"
    assert main([str(one), str(two), "--output", str(both)]) == 0
    assert {BLUE, ORANGE} <= colors(both)


def test_every_figure_has_its_panel(tmp_path, monkeypatch):
    records = [
        {"step": 2, "loss": 5.0, "learning_rate": 0.1, "tokens_per_second": 7},
        {"step": 4, "loss": 3.0, "learning_rate": 0.2, "tokens_per_second": 7},
        {"step": 4, "heldout_loss": 4.0, "heldout_recall_at_1": 0.5},
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    drawn = {}
    save = matplotlib.figure.Figure.savefig

    def look(figure, *args, **kwargs):
        for axis in figure.axes:
            assert axis.get_title() not in drawn
            drawn[axis.get_title()] = {
                line.get_label(): (*line.get_xdata(), *line.get_ydata())
                for line in axis.lines
                if not line.get_label().startswith("_")
            }
        save(figure, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", look)
    draw_curves((tmp_path,), tmp_path / "curves.png")
    assert drawn == {
        "loss": {"training": (2, 4, 5.0, 3.0), "held out": (4, 4.0)},
        "learning rate": {"training": (2, 4, 0.1, 0.2)},
        "recall at 1": {"held out": (4, 0.5)},
    }


@pytest.mark.parametrize(
    ("workdir", "output", "message"),
    [
        ("none", "a.png", "No such file or directory: '{}/none/metrics.jsonl'"),
        ("empty", "a.png", "{}/empty/metrics.jsonl has no figures yet"),
        ("damaged", "a.png", "{}/damaged/metrics.jsonl:2: a line must be"),
        ("nameless", "a.png", "{}/nameless/metrics.jsonl:1: a line must be"),
        ("one", "a.what", "must end in one of"),
        ("one", "none/a.png", "a folder that exists"),
        ("one", "folder.png", "Is a directory"),
    ],
)
def test_errors_leave_nothing(tmp_path, capsys, workdir, output, message):
    write_run(tmp_path / "one", 1)
    (tmp_path / "folder.png").mkdir()
    written = {
        "empty": "",
        "damaged": '{"step": 1, "loss": 2.0}\n{"step": 2, "lo\n',
        "nameless": '{"loss": 2.0}\n',
    }
    for name, lines in written.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(lines)
    args = [str(tmp_path / workdir), "--output", str(tmp_path / output)]
    assert main(args) == 1
    error = capsys.readouterr().err
    assert error.startswith("training.curves: error: ")
    assert message.format(tmp_path) in error
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"one", "folder.png", *written}


def test_no_folder_is_an_unreadable_command_line(capsys):
    with pytest.raises(SystemExit) as exit:
        main([])
    assert exit.value.code == 2
    assert "`workdirs` must name at least one" in capsys.readouterr().err
