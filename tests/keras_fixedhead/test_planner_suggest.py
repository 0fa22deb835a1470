"""Suggested shapes: within their bounds, in their order, reasons that hold."""

import dataclasses
import json
import math

import pytest

from keras_fixedhead import presets
from keras_fixedhead.planner import (
    EncoderShape,
    ParameterCount,
    leaner,
    suggest,
)
from keras_fixedhead.theory import depth_threshold, fitted_depth_threshold

pytestmark = pytest.mark.any_backend

MILLION = 10**6


def sizes_of(suggestion):
    names = ("hidden_dim", "num_layers", "num_heads", "head_size")
    return tuple(getattr(suggestion.shape, name) for name in names)


def reasons(suggestion):
    both = suggestion.reasons_for, suggestion.reasons_against
    return tuple("\n".join(each) for each in both)


def total(**sizes):
    arguments = {**presets.shape("bert_large"), **sizes}
    return ParameterCount.of(EncoderShape(**arguments)).total


@pytest.mark.parametrize(
    ("millions", "dim", "length"),
    [
        (30, 193, 512),
        (110, None, 128),
        (110, 768, 512),
        (340, 1024, 128),
    ],
)
def test_what_holds_for_all(millions, dim, length):
    budget = millions * MILLION
    suggestions = suggest(budget, length, embedding_dim=dim)
    assert 1 <= len(suggestions) <= 6
    marks = [s.cost.bottlenecked for s in suggestions]
    assert marks == sorted(marks)
    assert any(s.shape.standard_heads for s in suggestions)
    assert len({s.shape for s in suggestions}) == len(suggestions)
    for suggestion in suggestions:
        shape, cost = suggestion.shape, suggestion.cost
        good, bad = reasons(suggestion)
        assert cost.sequence_length == length
        assert shape.hidden_dim == dim or dim is None
        used = ParameterCount.of(shape).total / budget
        assert suggestion.budget_share == used <= 1
        assert f"Uses {used:.0%}" in (good if used >= 0.9 else bad)
        assert shape.num_layers <= 24
        widest = max(shape.num_heads * shape.head_size, shape.intermediate_dim)
        assert widest <= 8 * shape.hidden_dim
        # The bottleneck, from the sizes.
        small = min(shape.head_size, shape.hidden_dim) < length
        assert cost.bottlenecked == small
        assert ("Bottlenecked" in bad) == small == ("bottleneck" not in good)
        under = f"size, {shape.hidden_dim}, is under the {length} tokens"
        assert (under in bad) == (shape.hidden_dim < length)
        # The depth.
        log_3 = depth_threshold(shape.hidden_dim)
        fit = max(log_3, fitted_depth_threshold(shape.hidden_dim))
        layers = shape.num_layers
        assert ("past both thresholds" in bad) == (layers > fit)
        assert ("Mild" in bad) == (log_3 < layers <= fit)
        assert ("shallower" in bad) == (layers < math.floor(log_3))
        # More than standard heads, or these.
        more = shape.num_heads * shape.head_size > shape.hidden_dim
        assert ("Theorem 2" in good) == more
        # The figures.
        measured = suggestion.published is not None
        assert ("Measured" in good) == measured == ("Unmeasured" not in bad)
    json.dumps([s.as_dict() for s in suggestions])


def test_what_is_measured_comes_first():
    first, *others = suggest(200 * MILLION, 128)
    assert first.published == "fixed_d512_p128_h12"
    good, bad = reasons(first)
    assert "F1 90.25, EM 83.18, MNLI 84.2" in good
    assert "2,048 bytes per indexed document in float32, 50%" in good
    # Not monotone; and deeper than the fit allows.
    assert "MNLI is 84.2 with 12 heads and 83.9 with 16" in bad
    assert "past both thresholds" in bad and "21.6" in bad
    assert [s.published for s in others] == [None] * len(others)
    # Of what is measured, the smaller embedding, then the larger heads.
    assert [s.published for s in suggest(340 * MILLION, 128)[:3]] == [
        "fixed_d512_p128_h32",
        "fixed_d768_p128_h20",
        "bert_large_h8",
    ]
    large = suggest(340 * MILLION, 128, embedding_dim=1024, count=9)
    names = [s.published for s in large if s.published is not None]
    assert names == ["bert_large_h8", "bert_large_h16", "bert_large_h32"]


def test_what_is_measured_and_bottlenecked_does_not():
    suggestions = suggest(200 * MILLION, 512, embedding_dim=512)
    names = [s.published for s in suggestions]
    place = names.index("fixed_d512_p128_h12")
    assert place > 0
    assert not suggestions[place - 1].cost.bottlenecked
    _, bad = reasons(suggestions[place])
    assert "288 of 288 heads are under the 512 tokens" in bad


def test_depth_within_the_thresholds_comes_first():
    first, second, *_ = suggest(10 * MILLION, 128)
    assert sizes_of(first) == (192, 4, 6, 128)
    # A smaller embedding, but twice as deep as its thresholds.
    assert sizes_of(second) == (128, 9, 8, 128)
    assert second.budget_share > 0.9


def test_no_figures_are_cited_for_another_vocabulary():
    for suggestion in suggest(200 * MILLION, 128, vocabulary_size=30000):
        assert suggestion.published is None
        assert "Measured" not in reasons(suggestion)[0]
        assert suggestion.shape.vocabulary_size == 30000


@pytest.mark.parametrize(("millions", "dim"), [(30, 256), (110, 512)])
def test_heads_before_layers(millions, dim):
    """The fewest layers with which heads use the budget, found by trying."""
    budget = millions * MILLION
    found = [
        s
        for s in suggest(budget, 128, embedding_dim=dim, count=9)
        if s.published is None and not s.shape.standard_heads
    ]
    tried = {}
    widest = min(4096, 8 * dim) // 128
    first = math.floor(depth_threshold(dim))
    last = min(24, math.floor(fitted_depth_threshold(dim)))
    for layers in range(first, last + 1):
        for heads in range(dim // 128 + 1, widest + 1):
            used = total(
                num_layers=layers,
                num_heads=heads,
                hidden_dim=dim,
                head_size=128,
                intermediate_dim=4 * dim,
            )
            if used <= budget:
                tried[layers] = (heads, used / budget)
    well_used = [layers for layers in tried if tried[layers][1] >= 0.9]
    layers = min(well_used) if well_used else max(tried)
    assert sizes_of(found[0]) == (dim, layers, tried[layers][0], 128)
    deepest = max(tried)
    assert (dim, deepest, tried[deepest][0], 128) in map(sizes_of, found)
    if tried[deepest][0] < tried[layers][0]:
        good, bad = reasons(found[0])
        assert "Leaner Transformers" in good
        assert "also widen the embedding with the heads, 64 for each" in bad


def test_standard_heads_are_marked_and_come_last():
    *others, last = suggest(200 * MILLION, 128, count=2)
    assert len(others) == 2
    assert last.shape.standard_heads and not any(
        s.shape.standard_heads for s in others
    )
    assert sizes_of(last) == (768, 24, 12, 64)
    assert last.shape.intermediate_dim == 4 * 768
    good, bad = reasons(last)
    assert "embedding size / heads" in bad and "85.0 to 84.4" in bad
    # What the layers leave goes into the feed-forward.
    wide = suggest(110 * MILLION, 128, embedding_dim=512)[-1]
    assert wide.shape.standard_heads and wide.shape.intermediate_dim == 6 * 512
    # Not one of its layers fits.
    few = suggest(30 * MILLION, 64, embedding_dim=768)
    assert not any(s.shape.standard_heads for s in few)


def test_a_neighbour_is_cited():
    near = suggest(190 * MILLION, 128, embedding_dim=512)
    [shape] = [s for s in near if sizes_of(s)[1:3] == (15, 32)]
    assert "fixed_d512_p128_h8 (24 layers, 8 heads, 168M)" in reasons(shape)[1]
    # Where none is within a tenth there is none.
    far = suggest(110 * MILLION, 128, embedding_dim=512)
    assert not any("nearest" in reasons(s)[1] for s in far)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10**7, 128, 512), "at least 18,814,140.*size of 512"),
        ((2e8, 128), "`parameters` must be a positive integer.*=2000"),
        ((10**8, 513), "`sequence_length` must be .*from 1 to 512.*=513"),
        ((10**8, 128, -3), "`embedding_dim` must be a positive.*=-3"),
        ((10**8, 128, None, 0), "`vocabulary_size` must be.*=0"),
        ((10**8, 128, None, 97, 128, True, 0), "`count` must be.*=0"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        suggest(*arguments)


def test_the_smallest_that_would_do_does():
    with pytest.raises(ValueError, match="at least") as error:
        suggest(10**6, 128)
    text = str(error.value)
    least = int(text.split("at least ")[1].split(", for")[0].replace(",", ""))
    assert suggest(least, 128)[0].cost.parameters.total == least
    with pytest.raises(ValueError, match="at least"):
        suggest(least - 1, 128)


class TestLeaner:
    shape = EncoderShape(**presets.shape("fixed_d512_p128_h12"))

    def test_fewer_layers_and_more_heads(self):
        found = leaner(self.shape, 128)
        assert sizes_of(found) == (512, 14, 32, 128)
        assert found.shape.intermediate_dim == self.shape.intermediate_dim
        budget = ParameterCount.of(self.shape).total
        more = {**vars(found.shape), "num_heads": 33}
        assert total(**vars(found.shape)) <= budget < total(**more)
        assert found.budget == budget
        good, bad = reasons(found)
        assert "32 heads in 14 layers, not 12 in 24" in good
        assert "also widen the embedding with the heads, 64 for each" in bad

    @pytest.mark.parametrize(
        "arguments", [{"num_layers": 1}, {"head_size": (64, 128) * 12}]
    )
    def test_no_such_shape(self, arguments):
        shape = dataclasses.replace(self.shape, **arguments)
        with pytest.raises(ValueError, match="at least two layers.*Received"):
            leaner(shape, 128)
