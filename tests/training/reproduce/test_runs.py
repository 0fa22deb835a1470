"""Runs of the grid: their text, stopping and going on, and the report."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from keras_fixedhead.theory import construct_projections
from tests.training import tiny
from training.corpus.folder import Stream, read_stream
from training.prepare.__main__ import main as prepare
from training.reproduce import runner, runs
from training.reproduce.__main__ import main as reproduce
from training.reproduce.plan import Plan, Run
from training.reproduce.report import write_report
from training.reproduce.runner import claimed, make_runs
from training.reproduce.runs import TokenWindows
from training.reproduce.scales import SCALES

ROOT = pathlib.Path(__file__).parents[3]

SCALE = dataclasses.replace(
    SCALES["cpu"],
    num_layers=1,
    hidden_dim=32,
    intermediate_dim=12,
    sequence_length=5,
    steps=6,
    batch_size=3,
    warmup_steps=2,
    rates=(1e-2,),
    seeds=2,
    context_length=6,
    context_steps=100,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    text = tiny.write_text(folder / "text")
    args = ["--data", str(text), "--output", str(folder / "stream")]
    assert prepare(["stream", *args]) == 0
    return folder / "stream"


@pytest.fixture(scope="module")
def counting(data, tmp_path_factory):
    """A stream in which each token is followed by the next one."""
    folder = tmp_path_factory.mktemp("reproduce") / "counting"
    shutil.copytree(data, folder)
    for path in folder.glob("*.npy"):
        np.save(path, (5 + np.arange(len(np.load(path))) % 20).astype("<u2"))
    return folder


@pytest.fixture
def stream(data):
    return read_stream(data)


def cell(name):
    return next(c for c in Plan(SCALE, None).cells if c.name == name)


def train(stream, folder, stop_after=None, rate=1e-2):
    folder.mkdir(exist_ok=True)
    made = []

    def should_stop():
        return stop_after is not None and len(made) >= stop_after

    found = runs.train(
        Run(cell("heads_x2"), seed=1), rate, SCALE, stream, folder,
        should_stop, made.append,
    )  # fmt: skip
    return found, made


def test_a_stream_has_every_document_once(data, stream):
    text = data.parent / "text"
    manifest = json.loads((text / "manifest.json").read_text())
    tokens = {
        split: sum(shard["tokens"] for shard in shards)
        for split, shards in manifest["shards"].items()
    }
    start, end = (tiny.VOCABULARY.index(t) for t in ("[CLS]", "[SEP]"))
    for splits, source, documents in (
        (["train"], "train", 20),
        (["tuning", "test"], "heldout", 10),
    ):
        arrays = [np.asarray(stream.splits[split]) for split in splits]
        assert sum(map(len, arrays)) == tokens[source] + 2 * documents
        for array in arrays:
            starts = np.flatnonzero(array == start)
            ends = np.flatnonzero(array == end)
            assert len(starts) == documents // len(splits)
            np.testing.assert_array_equal(starts[1:], ends[:-1] + 1)
    assert stream.vocabulary_size == len(tiny.VOCABULARY)


def test_a_stream_is_made_of_text_with_held_out_documents(tmp_path, capfd):
    args = ["--data", str(tmp_path), "--output", str(tmp_path / "stream")]
    assert prepare(["stream", *args]) == 1
    assert "manifest.json" in capfd.readouterr().err
    text = tiny.write_text(tmp_path / "text")
    tiny.rewrite(text, shards={"train": [], "heldout": []})
    args[1] = str(text)
    assert prepare(["stream", *args]) == 1
    assert "two held-out documents" in capfd.readouterr().err


def test_windows_follow_each_other():
    tokens = np.arange(100, 124)
    windows = TokenWindows(tokens, 5, 3)
    batches = [windows[i] for i in range(windows.num_batches)]
    inputs = np.concatenate([x["token_ids"] for x, _ in batches])
    labels = np.concatenate([y for _, y in batches])
    np.testing.assert_array_equal(inputs.reshape(-1), tokens[:20])
    np.testing.assert_array_equal(labels.reshape(-1), tokens[1:21])
    assert [len(y) for _, y in batches] == [3, 1]


def test_windows_are_shuffled_anew_and_go_on_where_they_were():
    tokens = np.arange(51)
    whole = TokenWindows(tokens, 5, 3, batches=9, seed=7)
    batches = [whole[i][1] for i in range(whole.num_batches)]
    # Three batches an epoch; one window of ten is left out of each.
    epochs = [np.concatenate(batches[i : i + 3]) for i in (0, 3, 6)]
    for epoch in epochs:
        assert len({row[0] for row in epoch.tolist()}) == 9
    assert not np.array_equal(epochs[0], epochs[1])
    rest = TokenWindows(tokens, 5, 3, batches=9, first_batch=4, seed=7)
    assert rest.num_batches == 5
    for i in range(5):
        np.testing.assert_array_equal(rest[i][1], batches[4 + i])
    other = TokenWindows(tokens, 5, 3, batches=9, seed=8)
    assert not np.array_equal(other[0][1], batches[0])


def test_too_few_windows_for_a_batch():
    with pytest.raises(ValueError, match="4 windows"):
        TokenWindows(np.arange(21), 5, 5, batches=1)
    with pytest.raises(ValueError, match="0 windows"):
        TokenWindows(np.arange(5), 5, 5)
    assert TokenWindows(np.arange(6), 5, 5).num_batches == 1


def test_a_run_that_was_stopped_ends_as_if_it_was_not(stream, tmp_path):
    whole, made = train(stream, tmp_path / "whole")
    assert made == [1, 2, 3, 4, 5, 6]
    assert 0 < whole["nats"] < 2 * np.log(len(tiny.VOCABULARY))
    stopped, _ = train(stream, tmp_path / "parts", stop_after=2)
    assert stopped is None
    assert (tmp_path / "parts" / runs.CHECKPOINT).exists()
    again, made = train(stream, tmp_path / "parts")
    assert made == [3, 4, 5, 6]
    assert again["seconds"] > 0
    assert again["nats"] == pytest.approx(whole["nats"], rel=1e-5)
    assert again["flops"] == whole["flops"]


@pytest.mark.slow
def test_an_update_may_be_computed_in_parts(stream, tmp_path, monkeypatch):
    def change(**changes):
        scale = dataclasses.replace(SCALE, decay="rsqrt", **changes)
        monkeypatch.setattr(sys.modules[__name__], "SCALE", scale)

    change(parts=1)
    whole, _ = train(stream, tmp_path / "whole")
    change(parts=3)
    assert train(stream, tmp_path / "parts", stop_after=7)[0] is None
    parts, made = train(stream, tmp_path / "parts")
    assert made[-1] == 6
    # Adam makes more of what is rounding in gradients of 0.
    assert parts["nats"] == pytest.approx(whole["nats"], rel=1e-3)


def test_a_loss_that_is_not_finite_is_an_error(stream, tmp_path):
    with pytest.raises(FloatingPointError, match="not finite at update 6"):
        train(stream, tmp_path / "run", rate=float("nan"))


def test_nats_of_frequencies_by_hand():
    splits = {
        "train": np.array([0, 0, 1], "uint16"),
        "test": np.array([0, 2], "uint16"),
    }
    stream = Stream(3, "", {}, splits)
    expected = -(np.log(3 / 6) + np.log(1 / 6)) / 2
    found = runs.frequency_nats(stream, "test")
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


def plan_of(workdir, *names, **changes):
    plan = Plan(dataclasses.replace(SCALE, **changes), workdir)
    plan.runs = [run for run in plan.runs if run.cell.name in names]
    return plan


def results(workdir):
    return (workdir / "RESULTS.md").read_text(encoding="utf-8")


def test_runs_are_made_and_reported(counting, stream, tmp_path):
    plan = plan_of(tmp_path, "contexts_dense", "standard", steps=40)
    standard = plan.runs[0]
    assert make_runs(plan, counting, workers=1, minutes=None) is None
    assert plan.waiting() == []
    record = plan.record(standard)
    assert record["rate"] == 1e-2 and record["seed"] == 1
    assert not plan.folder(standard).joinpath(runs.CHECKPOINT).exists()
    write_report(plan, "cpu", stream)
    written = results(tmp_path)
    assert "4 of 4 runs are made" in written
    assert f"{record['figures']['nats']:.4f}" in written
    for name in ("language.png", "contexts.png"):
        assert f"({name})" in written
        assert (tmp_path / name).stat().st_size > 10_000
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["runs"][0] == record
    assert kept["verdicts"]["bert_accuracy"] == "not testable at this size"


@pytest.mark.parametrize(
    "on_trial", [None, pytest.param(1e-9, marks=pytest.mark.slow)]
)
def test_a_run_that_learned_nothing_fails(stream, tmp_path, on_trial):
    [run, *_] = plan_of(tmp_path, "standard").runs
    run = dataclasses.replace(run, rate=on_trial)
    with pytest.raises(ArithmeticError, match="than the frequencies"):
        runner._make(
            run, 1e-9, tmp_path, SCALE, stream, lambda: False, lambda n: None
        )
    assert not (tmp_path / "record.json").exists()


def test_a_failed_run_is_shown_and_made_anew_if_asked(stream, tmp_path):
    plan = plan_of(tmp_path, "standard")
    plan.folder(plan.runs[0]).mkdir(parents=True)
    runner.fail(plan.folder(plan.runs[0]), "its process was killed by SIGKILL")
    write_report(plan, "cpu", stream)
    assert "its process was killed by SIGKILL" in results(tmp_path)
    assert "1 failed" in results(tmp_path)
    assert plan.waiting() == plan.runs[1:]
    plan.forget_failures()
    assert plan.waiting() == plan.runs


def test_a_work_directory_is_of_one_process_and_one_grid(tmp_path):
    with claimed(tmp_path, {"scale": "cpu", "steps": 6}):
        with pytest.raises(ValueError, match="in use"):
            with claimed(tmp_path, {"scale": "cpu", "steps": 6}):
                pass
    with pytest.raises(ValueError, match="differ in steps"):
        with claimed(tmp_path, {"scale": "cpu", "steps": 7}):
            pass


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--scale", "tpu"], "`scale` must be one of cpu, gpu, paper"),
        (["--minutes", "-1"], "`minutes` must be positive"),
        (["--workers", "0"], "`workers` must be positive"),
        (["--workers", "9999"], "at most the number of CPUs"),
        ([], "manifest.json"),
    ],
)
def test_wrong_arguments(args, message, tmp_path, capsys):
    folders = ["--data", str(tmp_path), "--workdir", str(tmp_path / "work")]
    assert reproduce([*folders, *args]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def start(program, folder, **variables):
    """A process that runs a program which may start processes of its own."""
    path = folder / "program.py"
    path.write_text(program)
    paths = os.pathsep.join([*variables.pop("paths", ()), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": paths, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def program(data, workdir, **changes):
    """Makes the runs of the standard cell."""
    return f"""
import pathlib
import sys

from training.reproduce.plan import Plan, Run
from training.reproduce.runner import make_runs
from training.reproduce.scales import Scale

if __name__ == "__main__":
    scale = {dataclasses.replace(SCALE, **changes)!r}
    plan = Plan(scale, pathlib.Path({str(workdir)!r}))
    plan.runs = plan.runs[:2]
    sys.exit(make_runs(plan, pathlib.Path({str(data)!r}), 1, None) or 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_its_worker_killed(counting, tmp_path, signum):
    plan = plan_of(tmp_path, "standard")
    process = start(program(counting, tmp_path, steps=4000), tmp_path)
    first, second = plan.runs
    while not plan.folder(first).exists():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(5)
    if signum == signal.SIGINT:
        process.send_signal(signum)
        process.communicate(timeout=100)
        assert process.returncode == signum
        assert plan.waiting() == [first, second]
        assert plan.folder(first).joinpath(runs.CHECKPOINT).exists()
    else:
        [process_of_runs] = [
            child
            for child in psutil.Process(process.pid).children()
            if "--multiprocessing-fork" in child.cmdline()
        ]
        process_of_runs.send_signal(signum)
        process.communicate(timeout=500)
        assert process.returncode == 0
        assert "SIGKILL" in plan.failure(first)["error"]
        assert plan.record(second) is not None


@pytest.mark.slow
def test_without_tensorflow_on_the_machine(counting, tmp_path):
    for name in ("tensorflow", "tensorflow_text", "orbit", "tf_keras"):
        (tmp_path / "missing" / name).mkdir(parents=True)
        (tmp_path / "missing" / name / "__init__.py").write_text(
            "raise ImportError('not on this machine')"
        )
    process = start(
        program(counting, tmp_path / "work", steps=40),
        tmp_path,
        paths=[str(tmp_path / "missing")],
        KERAS_BACKEND="jax",
    )
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    record = plan_of(tmp_path / "work", "standard").record(
        Plan(SCALE, tmp_path / "work").runs[0]
    )
    assert "jax" in record["versions"]
