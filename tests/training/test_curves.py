"""The picture of runs: every figure, of one run or of several."""

import json

import pytest

from training.curves import main
from training.engine.metric_names import metric_label

RECORDS = [
    {"step": 2, "loss": 5.0, "learning_rate": 0.1, "tokens_per_second": 7},
    {"step": 4, "loss": 3.0, "learning_rate": 0.2, "tokens_per_second": 7},
    {"step": 4, "heldout_loss": 4.0, "recall@1": 0.5},
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
        axis.get_ylabel(): {
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
            "Loss (nats)": {
                "training, smoothed": (2, 4, 5.0, 3.0),
                "held out": (4, 4.0),
            },
            "Recall@1 (fraction found)": {"held out": (4, 0.5)},
        }
    ]


@pytest.mark.parametrize("name", ["two", "one"])
def test_draws_runs_side_by_side(tmp_path, drawn, name):
    """With the names of their folders, or their paths if two have one name."""
    (tmp_path / "other").mkdir()
    runs = write_run(tmp_path / "one"), write_run(tmp_path / "other" / name)
    both = tmp_path / "both.png"
    args = [*map(str, runs), "--output", str(both), "--title", "One wins"]
    assert main(args) == 0
    assert both.exists()
    [figure] = drawn
    assert figure.get_suptitle() == "One wins"
    names = ("one", "two") if name == "two" else runs
    kinds = ("training, smoothed", "held out")
    labels = [f"{run}, {kind}" for run in names for kind in kinds]
    assert list(lines(figure)["Loss (nats)"]) == labels
    # One legend for all panels.
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == labels


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("masked_lm_loss", "Masked LM loss (nats)"),
        (
            "accuracy_mnli_dev_matched",
            "Accuracy on MNLI matched (fraction right)",
        ),
        ("heldout_loss_dev", "Loss on dev (nats)"),
        ("embedding_loss", "Embedding loss (1 - cosine)"),
        ("mrr@10", "MRR@10"),
    ],
)
def test_names_for_readers(name, label):
    assert metric_label(name) == label


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
