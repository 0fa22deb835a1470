"""Which runs are left, and the learning rates that trials lead to."""

import math

import pytest

from keras_fixedhead.files import write_json
from training.engine.cli import RunFailed
from training.reproduce.cells import SCALES
from training.reproduce.plan import Plan, best_rate, between
from training.reproduce.runner import record_failure


def record(plan, run, nats):
    folder = plan.folder(run)
    folder.mkdir(parents=True)
    write_json(folder / "record.json", {"figures": {"nats": nats}})


def test_trials_come_first_then_cells_by_rank(tmp_path):
    plan = Plan(SCALES["cpu"], tmp_path)
    assert plan.waiting() == plan.pilots
    assert len(plan.pilots) == 16 and len(plan.runs) == 72
    assert {run.seed for run in plan.pilots} == {0}
    for run in plan.pilots[1:]:
        record(plan, run, 4.0)
    assert plan.waiting() == plan.pilots[:1]
    record_failure(plan.folder(plan.pilots[0]), "not finite")
    assert plan.waiting() == plan.runs
    assert [run.name for run in plan.runs[:4]] == [
        "runs/standard/seed_1",
        "runs/standard/seed_2",
        "runs/standard/seed_3",
        "runs/standard_x2/seed_1",
    ]
    plan.forget_failures()
    assert plan.waiting() == plan.pilots[:1]


def test_one_rate_needs_no_trial(tmp_path):
    plan = Plan(SCALES["paper"], tmp_path)
    assert not plan.pilots and plan.waiting() == plan.runs
    assert plan.rate(plan.runs[0]) == 1e-3


@pytest.mark.parametrize(
    ("nats", "best"),
    [
        # A parabola with its vertex at 3e-3.
        (
            {r: (math.log2(r / 3e-3)) ** 2 for r in (1e-3, 2e-3, 4e-3, 8e-3)},
            3e-3,
        ),
        ({1e-3: 4.0, 2e-3: 4.1, 4e-3: 4.2}, 1e-3),  # at an end
        ({1e-3: 4.2, 2e-3: 4.1, 4e-3: 4.0}, 4e-3),
        ({1e-3: 4.2, 2e-3: 4.1, 4e-3: math.inf}, 2e-3),  # beside a failure
        ({1e-3: 4.0, 2e-3: 4.0, 4e-3: 4.0}, 1e-3),
    ],
)
def test_the_best_rate(nats, best):
    assert best_rate(nats) == pytest.approx(best)


def test_no_rate_with_a_finite_loss():
    with pytest.raises(RunFailed, match="Tried: 0.001, 0.002"):
        best_rate({1e-3: math.inf, 2e-3: math.inf})


def test_rates_between_widths():
    rates = {64: 8e-3, 256: 2e-3, 512: 2e-3}
    assert between(rates, 32) == between(rates, 64) == pytest.approx(8e-3)
    assert between(rates, 128) == pytest.approx(4e-3)
    assert between(rates, 384) == pytest.approx(2e-3)
    assert between(rates, 1024) == pytest.approx(2e-3)


def test_a_cell_has_the_rate_of_its_width_and_depth(tmp_path):
    plan = Plan(SCALES["cpu"], tmp_path)
    lowest, low, high, _ = SCALES["cpu"].rates
    best = {"standard": high, "heads_x4": low, "sizes_x4": lowest}
    best["deep_x3"] = lowest
    for run in plan.pilots:
        record(plan, run, 4 + abs(math.log(run.rate / best[run.cell.name])))
    rates = {run.cell.name: plan.rate(run) for run in plan.runs}
    assert rates["wide_x8"] == rates["standard"]
    assert rates["standard"] == pytest.approx(high, rel=0.2)
    assert rates["sizes_x4_hot"] == pytest.approx(lowest)
    assert rates["heads_x4"] < rates["heads_x2"] < rates["standard"]
    assert rates["deep_x3"] == pytest.approx(lowest)
    assert rates["deep_x3"] < rates["deep_x2"] < rates["standard"]
