"""A run of each seed, one after the other, in processes of their own."""

import json

import pytest

from tests.training import tiny
from training import finetune
from training.engine.seeds import SUMMARY, read_figures, run_seeds


@pytest.mark.slow
def test_runs_each_seed_and_continues(tmp_path, capsys):
    data = tiny.write_labelled(tmp_path / "data")
    run = tiny.classification(data, tmp_path / "run", steps=2, log_interval=2)
    run = tiny.changed(run, evaluation_interval=2, warmup_steps=1, seed=5)
    args = [*tiny.flags(run, "mnli"), "--seeds", "2"]
    assert finetune.main(args) == 0
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert summary["seeds"] == [5, 6]
    runs = [read_figures(tmp_path / "run" / f"seed_{n}") for n in (5, 6)]
    for name, figure in summary["figures"].items():
        assert figure["values"] == [figures[name] for figures in runs]
    losses = summary["figures"]["heldout_loss_dev_one"]
    assert losses["values"][0] != losses["values"][1]
    assert "deviation" in capsys.readouterr().out
    # What is finished is not run again.
    before = (tmp_path / "run" / "seed_5" / "metrics.jsonl").read_bytes()
    assert finetune.main(args) == 0
    after = (tmp_path / "run" / "seed_5" / "metrics.jsonl").read_bytes()
    assert after == before


def test_stops_at_a_run_that_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb = tmp_path / "verb.py"
    verb.write_text(
        "import pathlib, sys\n"
        "seed = sys.argv[sys.argv.index('--seed') + 1]\n"
        "pathlib.Path(f'ran_{seed}').touch()\n"
        "sys.exit(3 if seed == '1' else 0)\n"
    )
    run = tiny.changed(tiny.classification(tmp_path, tmp_path / "run"))
    run = type(run)(**{**vars(run), "seeds": 3})
    assert run_seeds("verb", run, ["--config", "mnli"]) == 3
    assert {path.name for path in tmp_path.glob("ran_*")} == {"ran_0", "ran_1"}
    assert not (tmp_path / "run" / SUMMARY).exists()


def test_there_is_a_seed_at_least(tmp_path, capsys):
    run = tiny.classification(tmp_path, tmp_path / "run")
    args = [*tiny.flags(run, "mnli"), "--seeds", "0"]
    assert finetune.main(args) == 1
    assert "`seeds` must be positive. Received: 0" in capsys.readouterr().err
