"""What a run records, shows and refuses to mix; and runs of several seeds."""

import json
import re

import pytest

from tests.training import tiny
from training import finetune
from training.engine.records import (
    SUMMARY,
    RunRecords,
    run_seeds,
)


def test_workdir_of_another_run_is_refused(tmp_path):
    def claim(settings):
        records = RunRecords(tmp_path, 1, chief=True)
        records.claim(settings)
        return records

    settings = {"model": {"num_layers": 2, "head_size": [3, 5]}, "steps": 7}
    # One that never began leaves the folder to others.
    claim({"steps": 8})
    with claim(settings).running(0):
        pass
    claim(settings)
    claim(settings | {"init": None, "part": {"added": 0.0}})
    with pytest.raises(ValueError) as refused:
        claim({"model": {"num_layers": 2, "head_size": [3, 7]}, "seed": 1})
    message = str(refused.value)
    assert "model.head_size (there [3, 5], now [3, 7])" in message
    assert "seed (there None, now 1)" in message
    assert "steps (there 7, now None)" in message
    assert "num_layers" not in message
    assert json.loads((tmp_path / "config.json").read_text()) == settings


def test_a_metric_may_be_infinite(tmp_path):
    """As a perplexity, which must not cost the run its preset."""
    records = RunRecords(tmp_path, 1, chief=True)
    records.claim({})
    with records.running(0):
        records.evaluated(1, {"perplexity": float("inf")})
    records.describe(tmp_path)
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["figures"] == {"step": 1, "perplexity": float("inf")}


OUTPUTS = {
    "loss": 2.34567,
    "gradient_norm": 13.0,
    "steps_per_second": 1.254,
    "examples_per_second": 1234.4,
    "tokens_per_second": 56789.0,
    "model_flops_utilization": 0.417,
}


def test_lines_show_how_training_goes(tmp_path, capsys):
    records = RunRecords(tmp_path, 11, chief=True)
    records.claim({})
    with records.running(2):
        records.trained(3, OUTPUTS)
    assert capsys.readouterr().err == (
        "step 3 of 11: loss 2.3457  steps/s 1.25  examples/s 1,234  "
        "tokens/s 56,789  MFU 42%  ETA 0:00:06\n"
    )


def test_a_terminal_shows_a_bar(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal to rich
    records = RunRecords(tmp_path, 11, chief=True)
    records.claim({})
    with records.running(2):
        records.trained(3, OUTPUTS)
        records.evaluated(3, {"slope": 1.0})
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "2/11" in shown and "3/11" in shown and "MFU 42%" in shown
    assert "step 3 of 11: loss" not in shown
    assert shown.count("slope 1.0000") == 1


def test_only_the_chief_writes(tmp_path, capsys):
    records = RunRecords(tmp_path / "run", 1, chief=False)
    records.claim({"seed": 1})
    with records.running(0):
        records.trained(1, {"loss": 1.0, "steps_per_second": 1.0})
        records.evaluated(1, {"slope": 1.0})
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_runs_each_seed_and_continues(tmp_path, capsys):
    data = tiny.write_labelled(tmp_path / "data")
    run = tiny.classification(
        data,
        tmp_path / "run",
        steps=2,
        log_interval=2,
        evaluation_interval=2,
        warmup_steps=1,
        seed=5,
    )
    args = [*tiny.flags(run, "mnli"), "--seeds", "2"]
    assert finetune.main(args) == 0
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert summary["seeds"] == [5, 6]
    runs = [tiny.metrics(tmp_path / "run" / f"seed_{n}")[-1] for n in (5, 6)]
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
    run = tiny.classification(tmp_path, tmp_path / "run", seeds=3)
    assert run_seeds("verb", run, ["--config", "mnli"]) == 3
    assert {path.name for path in tmp_path.glob("ran_*")} == {"ran_0", "ran_1"}
    assert not (tmp_path / "run" / SUMMARY).exists()
