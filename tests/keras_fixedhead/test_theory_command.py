"""The command: a picture, its numbers, and what it refuses."""

import ast
import json
import pathlib
import re
import sys

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest

import keras_fixedhead.theory
from keras_fixedhead.theory import ContextFit, fit_context, lowest_error
from keras_fixedhead.theory.__main__ import main

pytestmark = pytest.mark.any_backend

QUICK = ["--sequence_lengths", "2", "3", "--steps", "100"]


def run(*arguments):
    return main([*QUICK, *map(str, arguments)])


@pytest.fixture
def not_trained(monkeypatch):
    """As if gradient descent had found the context."""
    monkeypatch.setattr(
        "keras_fixedhead.theory.representation.fit_context",
        lambda context, *_, **__: ContextFit(0.0, 0.0, 0.0, context),
    )


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    figures = []
    save = matplotlib.figure.Figure.savefig

    def look(figure, *args, **kwargs):
        figures.append(figure)
        return save(figure, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", look)
    return figures


def lines(axis, label):
    return [line for line in axis.lines if line.get_label() == label]


def test_writes_a_picture_and_its_numbers(tmp_path, drawn, capsys):
    picture = tmp_path / "errors.png"
    arguments = ["--sequence_lengths", 3, "--scale", 1.5, "--seeds", 4]
    assert run("--output", picture, *arguments) == 0
    assert matplotlib.image.imread(picture).std() > 0
    numbers = json.loads((tmp_path / "errors.json").read_text())
    assert sorted(tmp_path.iterdir()) == [tmp_path / "errors.json", picture]
    assert numbers["sequence_lengths"] == [3]
    assert numbers["scale"] == 1.5 and numbers["seeds"] == [4]
    rows = numbers["rows"]
    assert [row["head_size"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert (row["sequence_length"], row["seed"]) == (3, 4)
        enough = row["head_size"] >= row["sequence_length"] - 1
        assert (row["relative_lowest_error"] < 1e-10) == enough
        assert 0.0 <= row["relative_lowest_error"] < 1.0
    # One of them again, from the start.
    row = rows[0]
    logits = np.random.default_rng(4).standard_normal((3, 3)) * 1.5
    context = np.exp(logits) / np.exp(logits).sum(0)
    assert row["lowest_error"] == pytest.approx(lowest_error(context, 1))
    assert row["relative_lowest_error"] == pytest.approx(
        row["lowest_error"] / lowest_error_of_nothing(context)
    )
    fit = fit_context(context, 1, steps=100, seed=4)
    assert row["total_variation"] == pytest.approx(fit.total_variation)
    assert row["log_error"] == pytest.approx(fit.log_error, rel=1e-4)
    [figure] = drawn
    for axis, name in zip(
        figure.axes, ("relative_lowest_error", "total_variation")
    ):
        [line] = lines(axis, "3 tokens")
        assert list(line.get_xdata()) == [1, 2, 3, 4]
        assert list(line.get_ydata()) == [row[name] for row in rows]
    printed = capsys.readouterr()
    assert f"wrote {picture} and {tmp_path / 'errors.json'}" in (
        printed.out.replace("\n", " ")
    )
    assert "total" in printed.out and "fitting" in printed.err


def lowest_error_of_nothing(context):
    """The norm of all that a context's logits are."""
    log = np.log(context)
    return np.linalg.norm(log - log.mean(0))


def test_draws_means_over_seeds(tmp_path, drawn, not_trained):
    output = tmp_path / "errors.png"
    assert run("--output", output, "--seeds", 0, 1, 2) == 0
    rows = json.loads((tmp_path / "errors.json").read_text())["rows"]
    assert [
        (row["sequence_length"], row["head_size"], row["seed"]) for row in rows
    ] == [
        (length, size, seed)
        for length in (2, 3)
        for size in range(1, length + 2)
        for seed in (0, 1, 2)
    ]
    values = [r["relative_lowest_error"] for r in rows if r["head_size"] == 1]
    [line] = lines(drawn[0].axes[0], "3 tokens")
    assert line.get_ydata()[0] == pytest.approx(np.mean(values[3:]))
    assert np.ptp(values[3:]) > 1e-3


def test_the_papers_head_sizes_are_marked(tmp_path, drawn, not_trained):
    output = tmp_path / "errors.svg"
    arguments = ["--sequence_lengths", "37", "--seeds", "0"]
    assert main([*arguments, "--output", str(output)]) == 0
    assert "<svg" in output.read_text()
    [figure] = drawn
    for axis in figure.axes:
        [line] = lines(axis, "the paper's head sizes")
        assert list(line.get_xdata()) == [32, 32]
        [line] = lines(axis, "37 tokens")
        assert {32, 36, 37} <= set(line.get_xdata())
    rows = json.loads(output.with_suffix(".json").read_text())["rows"]
    assert max(row["head_size"] for row in rows) == 41


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "errors.txt"], "must end in one of .*png.*errors.txt"),
        (["--output", "errors.json"], "must end in one of"),
        (["--output", "errors"], "must end in one of"),
        (["--output", "nowhere/errors.png"], "a folder that exists"),
        (["--sequence_lengths", "1"], "at least 2.*lengths=1"),
        (["--sequence_lengths", "-3"], "an integer of at least 2"),
        (["--sequence_lengths"], "`sequence_lengths` must name one"),
        (["--seeds"], "`seeds` must name one"),
        (["--seeds", "-1"], "non-negative"),
        (["--scale", "0"], "`scale` must be a positive.*scale=0.0"),
        (["--scale", "nan"], "`scale` must be a positive"),
        (["--scale", "1000"], "`context` must be positive"),
        (["--steps", "0"], "`steps` must be a positive integer"),
        (["--learning_rate", "-1"], "`learning_rate` must be a positive"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("keras_fixedhead.theory: error: ")
    assert re.search(message, error.replace("\n", " "))
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_nothing_and_what_was_there(
    tmp_path, monkeypatch, capsys, not_trained
):
    picture = tmp_path / "errors.png"
    picture.write_text("of the last run")

    def fail(*_, **__):
        raise OSError("disk is full")

    monkeypatch.setattr(pathlib.Path, "write_text", fail)
    assert run("--output", picture) == 1
    assert "disk is full" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [picture]
    assert picture.read_text() == "of the last run"


def test_without_matplotlib(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("--output", tmp_path / "errors.png") == 1
    assert "pip install 'keras_fixedhead[pictures]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_package_imports_neither_pictures_nor_flags():
    folder = pathlib.Path(keras_fixedhead.theory.__file__).parent
    modules = sorted(folder.glob("*.py"))
    assert len(modules) == 4
    for path in modules:
        if path.name == "__main__.py":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                line = ast.unparse(node)
                assert not re.search("matplotlib|tyro|rich|__main__", line), (
                    path
                )
