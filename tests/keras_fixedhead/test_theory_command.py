"""The command: a picture, its numbers, and what it refuses."""

import json
import re

import numpy as np
import pytest

from keras_fixedhead.theory import ContextFit, fit_context, lowest_error
from keras_fixedhead.theory.__main__ import main

pytestmark = pytest.mark.any_backend

QUICK = ["--sequence_lengths", "2", "3", "--steps", "100"]


def run(*arguments):
    return main([*QUICK, *map(str, arguments)])


def test_writes_a_picture_and_its_numbers(tmp_path, drawn, capsys):
    picture, written = tmp_path / "errors.png", tmp_path / "errors.json"
    arguments = ["--sequence_lengths", 3, "--scale", 1.5, "--seeds", 4]
    assert run("--output", picture, *arguments) == 0
    numbers = json.loads(written.read_text())
    assert sorted(tmp_path.iterdir()) == [written, picture]
    assert numbers["sequence_lengths"] == [3]
    assert numbers["scale"] == 1.5 and numbers["seeds"] == [4]
    rows = numbers["rows"]
    assert [row["head_size"] for row in rows] == [1, 2, 3, 4]
    # One of them again, from the start.
    row = rows[0]
    assert (row["sequence_length"], row["seed"]) == (3, 4)
    logits = np.random.default_rng(4).standard_normal((3, 3)) * 1.5
    context = np.exp(logits) / np.exp(logits).sum(0)
    assert row["lowest_error"] == pytest.approx(lowest_error(context, 1))
    norm = np.linalg.norm(logits - logits.mean(0))
    assert row["relative_lowest_error"] * norm == pytest.approx(
        row["lowest_error"]
    )
    fit = fit_context(context, 1, steps=100, seed=4)
    assert row["total_variation"] == pytest.approx(fit.total_variation)
    assert row["log_error"] == pytest.approx(fit.log_error, rel=1e-4)
    [figure] = drawn
    for axis, name in zip(
        figure.axes, ("relative_lowest_error", "total_variation")
    ):
        line = axis.lines[0]
        assert list(line.get_xdata()) == [1, 2, 3, 4]
        assert list(line.get_ydata()) == [row[name] for row in rows]
    printed = capsys.readouterr()
    assert f"wrote {picture} and {written}" in printed.out.replace("\n", " ")
    assert "total" in printed.out and "fitting" in printed.err


def test_draws_means_over_seeds(tmp_path, drawn, monkeypatch):
    # As if gradient descent had found each context.
    monkeypatch.setattr(
        "keras_fixedhead.theory.representation.fit_context",
        lambda context, *_, **__: ContextFit(0.0, 0.0, 0.0, context),
    )
    output = tmp_path / "errors.svg"
    arguments = ["--sequence_lengths", 3, 37, "--seeds", 0, 1, 2]
    assert run("--output", output, *arguments) == 0
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    values = [
        (row["seed"], row["relative_lowest_error"])
        for row in rows
        if (row["sequence_length"], row["head_size"]) == (37, 32)
    ]
    assert [seed for seed, _ in values] == [0, 1, 2]
    line = drawn[0].axes[0].lines[1]
    place = list(line.get_xdata()).index(32)
    mean = np.mean([value for _, value in values])
    assert line.get_ydata()[place] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "errors.txt"], "must end in one of .*png.*errors.txt"),
        (["--sequence_lengths", "1"], "at least 2.*lengths=1"),
        (["--seeds"], "at least one of"),
        (["--scale", "1000"], "`context` must be positive"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("keras_fixedhead.theory: error: ")
    assert re.search(message, error.replace("\n", " "))
    assert not list(tmp_path.iterdir())
