"""The grid of shapes, the runs that are left, and their learning rates.

What each cell is compared with is what it should be.
"""

import dataclasses
import math

import pytest

from keras_fixedhead.files import write_json
from keras_fixedhead.planner import ParameterCount, encoder_flops
from training.engine.cli import RunFailed
from training.reproduce.cells import SCALES, encoder_shape, grid
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


@pytest.fixture(params=SCALES)
def scale(request):
    return SCALES[request.param]


def cells(scale):
    return {cell.name: cell for cell in grid(scale)}


def layers(scale, name):
    """Parameters of a cell's Transformer blocks."""
    cell = cells(scale)[name]
    count = ParameterCount.of(encoder_shape(cell, scale, 1))
    attention = count.query + count.key + count.value + count.attention_output
    return attention + count.feed_forward


def test_heads_of_the_standard_layer_fill_the_embedding(scale):
    assert len(cells(scale)) == len(grid(scale)) == 24
    for name, cell in cells(scale).items():
        if name.startswith(("standard", "embedding", "wide", "broad")):
            assert cell.width == cell.shape["hidden_dim"], name
    assert cells(scale)["standard"].shape["num_heads"] == scale.num_heads
    for factor in (2, 4, 8):
        fixed, standard, wide = (
            cells(scale)[f"{name}_x{factor}"].shape
            for name in ("heads", "standard", "wide")
        )
        heads = factor * scale.num_heads
        assert {x["num_heads"] for x in (fixed, standard, wide)} == {heads}
        assert fixed["head_size"] == scale.head_size
        assert standard["head_size"] == wide["head_size"]
    assert cells(scale)["sizes_x4"].width == 8 * scale.hidden_dim


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_wide_feed_forward_costs_as_many_parameters(scale, factor):
    wide = layers(scale, f"wide_x{factor}")
    fixed = layers(scale, f"heads_x{factor}")
    of_a_unit = scale.num_layers * (2 * scale.hidden_dim + 1)
    assert 0 <= fixed - wide < of_a_unit


def test_as_many_operations(scale):
    fixed, standard = (
        encoder_flops(
            encoder_shape(cells(scale)[name], scale, 1), scale.sequence_length
        )
        for name in ("heads_x4", "flops_x4")
    )
    of_a_unit = scale.num_layers * 4 * scale.hidden_dim
    assert 0 <= fixed - standard < of_a_unit


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("heads_x4", "deep_x2"),
        ("heads_x4", "sizes_x2"),
        ("heads_x8", "sizes_x4"),
        ("deep_x2", "broad_x2"),
        ("deep_x3", "broad_x3"),
    ],
)
def test_what_is_compared_has_about_as_many_parameters(scale, one, other):
    assert layers(scale, one) == pytest.approx(layers(scale, other), rel=0.04)


def test_temperatures_are_swapped(scale):
    found = cells(scale)
    hot, cold = found["sizes_x4_hot"].shape, found["standard_x2_cold"].shape
    assert hot["attention_scale"] == cold["head_size"] ** -0.5
    assert cold["attention_scale"] == hot["head_size"] ** -0.5
    for name in ("sizes_x4_hot", "standard_x2_cold"):
        base, _, _ = name.rpartition("_")
        scaled = dict(found[name].shape)
        del scaled["attention_scale"]
        assert scaled == found[base].shape


def test_the_paper_is_the_papers():
    scale = SCALES["paper"]
    assert dataclasses.astuple(scale)[:5] == (6, 256, 1024, 8, 256)
    assert scale.head_size == 32
    assert cells(scale)["embedding_x2"].shape["hidden_dim"] == 512
