"""What a run records, shows and refuses to mix with another run."""

import json

import pytest

from training.engine.records import RunRecords


def test_workdir_of_another_run_is_refused(tmp_path):
    def claim(settings):
        records = RunRecords(tmp_path, 1, chief=True)
        records.claim(settings)
        return records

    settings = {"model": {"num_layers": 2, "head_size": [3, 5]}, "steps": 7}
    # One that never began leaves the folder to others.
    claim({"steps": 8})
    with claim(settings).running(0, evaluate_first=False):
        pass
    claim(settings)
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
    with records.running(0, evaluate_first=False):
        records.evaluated(1, {"perplexity": float("inf")})
    records.describe(tmp_path)
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["figures"] == {"step": 1, "perplexity": float("inf")}


def test_progress_shows_how_training_goes(tmp_path):
    records = RunRecords(tmp_path, 11, chief=True)
    records.claim({})
    with records.running(2, evaluate_first=False):
        (task,) = records._bar.tasks
        assert (task.completed, task.total) == (2, 11)
        assert task.fields["figures"] == ""
        outputs = {
            "loss": 2.34567,
            "gradient_norm": 13.0,
            "steps_per_second": 1.254,
            "examples_per_second": 1234.4,
        }
        records.trained(3, outputs)
        assert task.completed == 3
        shown = "loss 2.3457  steps/s 1.25  examples/s 1,234"
        assert task.fields["figures"] == shown
        more = {"tokens_per_second": 56789.0, "model_flops_utilization": 0.417}
        records.trained(5, outputs | more)
        assert task.completed == 5
        shown += "  tokens/s 56,789  MFU 42%"
        assert task.fields["figures"] == shown


def test_only_the_chief_writes(tmp_path):
    records = RunRecords(tmp_path / "run", 1, chief=False)
    records.claim({"seed": 1})
    with records.running(0, evaluate_first=False):
        records.trained(1, {"loss": 1.0, "steps_per_second": 1.0})
        records.evaluated(1, {"slope": 1.0})
    assert not (tmp_path / "run").exists()
