"""The grid of shapes: what each cell is compared with is what it should be."""

import dataclasses

import pytest

from keras_fixedhead.planner import ParameterCount, encoder_flops
from training.reproduce.cells import SCALES, encoder_shape, grid


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
