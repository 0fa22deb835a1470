"""The picture of runs: every figure, of one run or of several."""

import json

import matplotlib.image
import numpy as np
import pytest

from training.curves import main


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


@pytest.mark.parametrize(
    ("workdir", "output", "message"),
    [
        ("none", "a.png", "No such file or directory: '{}/none/metrics.jsonl'"),
        ("one", "a.what", "Format 'what' is not supported"),
        ("one", "none/a.png", "No such file or directory"),
        ("one", "folder.png", "Is a directory"),
    ],
)
def test_errors_leave_nothing(tmp_path, capsys, workdir, output, message):
    write_run(tmp_path / "one", 1)
    (tmp_path / "folder.png").mkdir()
    args = [str(tmp_path / workdir), "--output", str(tmp_path / output)]
    assert main(args) == 1
    error = capsys.readouterr().err
    assert error.startswith("training.curves: ")
    assert message.format(tmp_path) in error
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"one", "folder.png"}
