"""Worker processes that make runs: what they record, and how they end."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.training.reproduce.tiny_grid import SCALE, plan_of, write_stream
from training.corpus.folder import read_stream
from training.reproduce import runner
from training.reproduce.__main__ import main
from training.reproduce.plan import Run
from training.reproduce.report import write_report
from training.reproduce.runner import claimed, make_runs
from training.reproduce.runs import CHECKPOINT, frequency_nats

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runner") / "text"
    return write_stream(folder, learnable=True)


def test_runs_are_made_and_reported(data, tmp_path, capfd):
    plan = plan_of(tmp_path, "contexts_dense", "standard", steps=40, seeds=1)
    standard, contexts = plan.runs
    folder = plan.folder(contexts)
    runner.make_run(contexts, 0.0, folder, SCALE, None, lambda: False, print)
    assert plan.record(contexts)["rate"] is None
    diverging = Run(standard.cell, 0, rate=1e30)
    plan.runs.append(diverging)
    assert make_runs(plan, data, workers=None, minutes=None) is None
    assert plan.waiting() == []
    record = plan.record(standard)
    assert record["rate"] == 1e-2 and record["seed"] == 1
    assert not plan.folder(standard).joinpath(CHECKPOINT).exists()
    failure = plan.failure(diverging)
    assert failure["error"].startswith("FloatingPointError: the loss is not")
    assert "after_batch" in failure["traceback"]
    said = capfd.readouterr().err
    assert f"{standard.name}: finished" in said
    assert f"{diverging.name}: failed: FloatingPointError: the loss is" in said

    write_report(plan, "cpu", read_stream(data))
    written = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "2 of 3 runs are made" in written
    assert f"{record['figures']['nats']:.4f}" in written
    for name in ("language.png", "contexts.png"):
        assert f"({name})" in written
        assert (tmp_path / name).stat().st_size > 10_000
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["runs"][0] == record
    assert kept["verdicts"]["bert_accuracy"] == "not testable at this size"


@pytest.mark.parametrize("rate", [0.0, 1e-2], ids=["counts", "trial"])
def test_a_run_that_learned_nothing_fails(data, tmp_path, monkeypatch, rate):
    stream = read_stream(data)
    run = Run(plan_of(tmp_path, "standard").runs[0].cell, 1, rate)
    nats = 0.98 * frequency_nats(stream, run.split)
    monkeypatch.setattr(runner, "train", lambda *arguments: {"nats": nats})
    with pytest.raises(ArithmeticError, match="than the frequencies"):
        runner.make_run(
            run, 1e-2, tmp_path, SCALE, stream, lambda: False, print
        )
    assert not (tmp_path / "record.json").exists()


def test_a_work_directory_is_of_one_process_and_one_grid(tmp_path):
    with claimed(tmp_path, {"scale": "cpu", "steps": 6}):
        with pytest.raises(ValueError, match="in use"):
            with claimed(tmp_path, {"scale": "cpu", "steps": 6}):
                pass
    with pytest.raises(ValueError, match="differ in steps .there 6, now 7"):
        with claimed(tmp_path, {"scale": "cpu", "steps": 7}):
            pass


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--scale", "tpu"], "`scale` must be one of cpu, gpu, paper"),
        (["--minutes", "-1"], "`minutes` must be at least 0"),
        (["--workers", "9999"], "`workers` must be from 1 to the number of"),
        ([], "manifest.json"),
    ],
)
def test_wrong_arguments(args, message, tmp_path, capsys):
    folders = ["--data", str(tmp_path), "--workdir", str(tmp_path / "work")]
    assert main([*folders, *args]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_no_minutes_are_for_the_report_alone(data, tmp_path):
    flags = ["--data", str(data), "--workdir", str(tmp_path / "work")]
    assert main([*flags, "--minutes", "0", "--retry_failed"]) == 0
    written = (tmp_path / "work" / "RESULTS.md").read_text(encoding="utf-8")
    assert "0 of 72 runs are made" in written
    settings = json.loads((tmp_path / "work" / "settings.json").read_text())
    assert settings["scale"] == "cpu" and settings["steps"] == 2400


def start(program, folder, *paths, **variables):
    """A process that runs a program which may start processes of its own."""
    path = folder / "program.py"
    path.write_text(program)
    python_path = os.pathsep.join([*paths, str(ROOT)])
    return subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": python_path, **variables},
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
from training.reproduce.cells import Scale

if __name__ == "__main__":
    scale = {dataclasses.replace(SCALE, **changes)!r}
    plan = Plan(scale, pathlib.Path({str(workdir)!r}))
    plan.runs = plan.runs[:2]
    sys.exit(make_runs(plan, pathlib.Path({str(data)!r}), 1, None) or 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_its_worker_killed(data, tmp_path, signum):
    plan = plan_of(tmp_path, "standard")
    process = start(program(data, tmp_path, steps=4000), tmp_path)
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
        assert plan.folder(first).joinpath(CHECKPOINT).exists()
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
def test_without_tensorflow_on_the_machine(data, tmp_path):
    for name in ("tensorflow", "tensorflow_text", "orbit", "tf_keras"):
        (tmp_path / "missing" / name).mkdir(parents=True)
        (tmp_path / "missing" / name / "__init__.py").write_text(
            "raise ImportError('not on this machine')"
        )
    work = tmp_path / "work"
    process = start(
        program(data, work, steps=40),
        tmp_path,
        str(tmp_path / "missing"),
        KERAS_BACKEND="jax",
    )
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    plan = plan_of(work, "standard")
    assert "jax" in plan.record(plan.runs[0])["versions"]
