"""One run: its windows of text, stopping and going on, and contexts."""

import dataclasses

import numpy as np
import pytest

from keras_fixedhead.theory import construct_projections
from tests.training.reproduce.tiny_grid import (
    SCALE,
    VOCABULARY_SIZE,
    cell,
    write_stream,
)
from training.corpus.folder import Stream, read_stream
from training.reproduce import runs
from training.reproduce.plan import Run


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "text"
    return read_stream(write_stream(folder, learnable=False))


def train(stream, folder, stop_after=None, scale=SCALE):
    folder.mkdir(exist_ok=True)
    made = []

    def should_stop():
        return stop_after is not None and len(made) >= stop_after

    run = Run(cell("heads_x2"), seed=1)
    found = runs.train(
        run, 1e-2, scale, stream, folder, should_stop, made.append
    )
    return found, made


def test_windows_follow_each_other():
    tokens = np.arange(100, 124)
    inputs, labels = runs.examples(runs.token_windows(tokens, 5))
    np.testing.assert_array_equal(inputs["token_ids"].reshape(-1), tokens[:20])
    np.testing.assert_array_equal(labels.reshape(-1), tokens[1:21])


def test_windows_are_shuffled_anew_and_go_on_where_they_were():
    windows = runs.token_windows(np.arange(51), 5)

    def labels(first=0, seed=7):
        batches = runs.shuffled_batches(windows, 3, first, 9, seed)
        return [labels for _, labels in batches]

    batches = labels()
    # Three batches an epoch; one window of ten is left out of each.
    epochs = [np.concatenate(batches[i : i + 3]) for i in (0, 3, 6)]
    for epoch in epochs:
        assert len({row[0] for row in epoch.tolist()}) == 9
    assert not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(labels(first=4), batches[4:])
    assert not np.array_equal(labels(seed=8)[0], batches[0])


def test_too_few_windows_for_a_batch():
    with pytest.raises(ValueError, match="4 windows"):
        runs.token_windows(np.arange(21), 5, least=5)
    with pytest.raises(ValueError, match="0 windows"):
        runs.token_windows(np.arange(5), 5)
    assert runs.token_windows(np.arange(6), 5).shape == (1, 6)


def test_a_run_that_was_stopped_ends_as_if_it_was_not(stream, tmp_path):
    whole, made = train(stream, tmp_path / "whole")
    assert made == [1, 2, 3, 4, 5, 6]
    assert 0 < whole["nats"] < 2 * np.log(VOCABULARY_SIZE)
    stopped, _ = train(stream, tmp_path / "parts", stop_after=2)
    assert stopped is None
    assert (tmp_path / "parts" / runs.CHECKPOINT).exists()
    again, made = train(stream, tmp_path / "parts")
    assert made == [3, 4, 5, 6]
    assert again["seconds"] > 0
    assert again["nats"] == pytest.approx(whole["nats"], rel=1e-5)
    assert again["flops"] == whole["flops"]


@pytest.mark.slow
def test_an_update_may_be_computed_in_parts(stream, tmp_path):
    scale = dataclasses.replace(SCALE, decay="rsqrt")
    whole, _ = train(stream, tmp_path / "whole", scale=scale)
    scale = dataclasses.replace(scale, parts=3)
    stopped, _ = train(stream, tmp_path / "parts", stop_after=7, scale=scale)
    assert stopped is None
    parts, made = train(stream, tmp_path / "parts", scale=scale)
    assert made[-1] == 6
    # Adam makes more of what is rounding in gradients of 0.
    assert parts["nats"] == pytest.approx(whole["nats"], rel=1e-3)


def test_nats_of_frequencies_by_hand():
    splits = {
        "train": np.array([0, 0, 1], "uint16"),
        "test": np.array([0, 2], "uint16"),
    }
    expected = -(np.log(3 / 6) + np.log(1 / 6)) / 2
    found = runs.frequency_nats(Stream(3, "", {}, splits), "test")
    assert found == pytest.approx(expected)


def test_contexts_are_what_they_are_called():
    dense, one_hot = (
        runs.draw_context(kind, 6, seed=1) for kind in ("dense", "one_hot")
    )
    for context in (dense, one_hot):
        np.testing.assert_allclose(context.sum(0), 1.0)
    assert (one_hot.max(0) > 0.99).all() and one_hot.max(1).min() > 0.99
    # A dense one takes a head of n - 1 (Theorem 1).
    construct_projections(np.eye(6), dense, 5)
    with pytest.raises(ValueError, match="at least 5"):
        construct_projections(np.eye(6), dense, 4)


def test_divergence_by_hand():
    context = np.array([[0.5, 0.25], [0.5, 0.75]])
    scores = np.array([[0.25, 0.25], [0.75, 0.75]])
    expected = (0.5 * np.log(2) + 0.5 * np.log(2 / 3)) / 2
    assert runs.divergence(context, scores) == pytest.approx(expected)
    assert runs.divergence(context, np.eye(2)) < 100
