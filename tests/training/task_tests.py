"""What holds for every training task, as a base class of its tests.

A task's test module has a `Case`, `CASE`, and a subclass of `TaskTests`; what
is the task's own follows as functions. `conftest.py` has the fixtures.
"""

import contextlib
import dataclasses
import io
import json
import pathlib
import pkgutil
import re
import signal
import types
from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import yaml

import keras_fixedhead
from tests.training import tiny
from training.engine.cli import Interrupted
from training.engine.records import RunRecords

# Beside these, a short run in float64 without dropout.
EXACT = {
    "dtype": "float64",
    "dropout": 0.0,
    "steps": 3,
    "warmup_steps": 1,
    "log_interval": 1,
    "evaluation_interval": 3,
    "checkpoint_interval": 3,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run, and what it printed."""

    workdir: pathlib.Path
    out: str
    said: str

    @property
    def preset(self):
        return self.workdir / "preset"

    @property
    def records(self):
        return tiny.metrics(self.workdir)


@dataclasses.dataclass(frozen=True)
class Case:
    """A task's verb, its named runs, and a tiny run that learns.

    `make(data, workdir, **changes)` returns the configuration of a tiny run,
    such as `tiny.classification`; `changes` make it learn. `write(folder)`
    writes its data, unless the module has a fixture `data`.
    """

    verb: types.ModuleType
    named_runs: dict[str, Callable]
    make: Callable
    changes: dict
    write: Callable | None = None

    def config(self, data, workdir, **changes):
        return self.make(data, workdir, **self.changes | changes)

    def args(self, data, workdir, **changes):
        config = self.config(data, workdir, **changes)
        return tiny.flags(config, next(iter(self.named_runs)))

    def task(self, data, workdir, **changes):
        """The built task of a tiny run, which need not learn."""
        config = self.make(data, workdir, **changes)
        task = pkgutil.resolve_name(config.task)(config)
        task.build()
        return task

    def train(self, data, workdir, **changes) -> Run:
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            status = self.verb.main(self.args(data, workdir, **changes))
        assert status == 0, said.getvalue()
        return Run(workdir, out.getvalue(), said.getvalue())

    def error(self, capsys, data, workdir, **changes) -> str:
        """The one line of a run that ends with status 1."""
        assert self.verb.main(self.args(data, workdir, **changes)) == 1
        return tiny.error(capsys)


def read_card(preset):
    """The lines of a preset's card, and the task that it tells the hub."""
    text = (preset / "README.md").read_text(encoding="utf-8")
    _, front_matter, body = text.split("---\n", maxsplit=2)
    hub = yaml.safe_load(front_matter)
    task = hub.pop("pipeline_tag")
    assert hub == {"library_name": "keras-hub", "tags": ["keras-fixedhead"]}
    # No path of this machine.
    assert not re.search(r"[\s`]/", body) and "pytest" not in body
    return body.splitlines(), task


def first_batch(task):
    return next(iter(task.training_dataset(tf.distribute.InputContext(), 0)))


def cross_entropy(logits, labels):
    """In float64, of `[..., C]` and `[...]`."""
    logits = np.asarray(logits, "float64")
    right = np.take_along_axis(logits, np.asarray(labels)[..., None], -1)
    return scipy.special.logsumexp(logits, -1) - right[..., 0]


def weights(workdir):
    """The model's variables in the last checkpoint of a run, in order."""
    latest = tf.train.latest_checkpoint(workdir / "checkpoints")
    reader = tf.train.load_checkpoint(latest)
    return [
        reader.get_tensor(name)
        for name, dtype in sorted(reader.get_variable_to_dtype_map().items())
        if name.startswith("model/") and dtype.is_floating
    ]


def difference(workdir, other):
    """The largest difference between the weights of two runs."""
    return max(
        np.abs(a - b).max()
        for a, b in zip(weights(workdir), weights(other), strict=True)
    )


class TaskTests:
    """Flags, refusals, and how a run is continued."""

    case: Case
    # Flags without a default, beside --data and --workdir.
    required: tuple[str, ...] = ()
    # Changes of flags, and a pattern of the error.
    refused: list[tuple[dict, str]] = []
    # A change of the task's own options: another run.
    other: dict = {}
    # Changes that change how a run is computed, not what it computes.
    ways: tuple[dict, ...] = ({"packed": False},)
    # By how much the metrics may then differ, relatively.
    tolerance = 1e-9

    def pytest_generate_tests(self, metafunc):
        if "change" in metafunc.fixturenames:
            metafunc.parametrize("change, message", self.refused)
        if "named" in metafunc.fixturenames:
            metafunc.parametrize("named", self.case.named_runs)

    def test_bad_values_are_one_line(
        self, change, message, data, tmp_path, capsys
    ):
        error = self.case.error(capsys, data, tmp_path / "run", **change)
        assert re.search(message, error), error
        # The right value would be refused by a folder of the wrong one.
        assert not (tmp_path / "run" / "config.json").exists()

    def test_named_run(self, named, capsys):
        args = ["--config", named, "--data", "d", "--workdir", "w"]
        config = self.case.verb.parse([*args, *self.required])
        default = self.case.named_runs[named]()
        assert type(config) is type(default)
        assert config.config == named
        assert config.training == default.training
        assert str(config.run.data) == "d"
        with pytest.raises(SystemExit) as stopped:
            self.case.verb.parse(args[:2])
        assert stopped.value.code == 2
        error = capsys.readouterr().err
        flags = [word for word in self.required if word.startswith("--")]
        for flag in ("--data", "--workdir", *flags):
            assert flag in error

    def test_help_lists_named_runs(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            self.case.verb.parse(["--help"])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert all(f"{name}:" in shown for name in self.case.named_runs)

    def test_finished_run_says_so(self, run, data, capsys):
        before = (run.workdir / "metrics.jsonl").read_bytes()
        # How often it reports may change, and is not part of the run.
        again = self.case.train(data, run.workdir, log_interval=7)
        assert "finished before" in again.said
        assert (run.workdir / "metrics.jsonl").read_bytes() == before

    def test_model_card(self, run, data):
        lines, task = read_card(run.preset)
        config = self.case.config(data, run.workdir)
        for name, value in run.records[-1].items():
            style = "," if isinstance(value, int) else ".4g"
            assert f"- {name}: {value:{style}}" in lines
        assert f"- data: `{config.run.data.name}`" in lines
        assert f"- steps: {config.training.steps:,}" in lines
        shape = json.loads((run.preset / "config.json").read_text())["config"]
        assert f"- head_size: {shape['head_size']}" in lines
        assert any(line.startswith("- training ") for line in lines)
        # A class of the library, whose task on the hub is its own.
        kind = lines[1].removeprefix("# ").partition(",")[0]
        assert hasattr(keras_fixedhead, kind) and task != "feature-extraction"
        assert any(f"{kind}.from_preset(" in line for line in lines)

    def test_another_run_is_refused(self, run, data, capsys):
        changes = {"seed": 1, **self.other}
        error = self.case.error(capsys, data, run.workdir, **changes)
        there = tiny.values(self.case.config(data, run.workdir))
        for name, value in changes.items():
            assert f".{name} (there {there[name]!r}, now {value!r})" in error
        assert "learning_rate" not in error

    @pytest.mark.slow
    def test_interrupted_run_goes_on_exactly(
        self, run, data, tmp_path, monkeypatch
    ):
        interval = self.case.config(data, tmp_path).run.log_interval

        class Records(RunRecords):
            def trained(self, now, outputs):
                super().trained(now, outputs)
                if now == interval:
                    signal.raise_signal(signal.SIGTERM)

        config = self.case.config(data, tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr("training.engine.loop.RunRecords", Records)
            with pytest.raises(Interrupted, match=f"after step {interval}"):
                self.case.verb.train(config)
        self.case.verb.train(config)
        assert tiny.metrics(tmp_path) == run.records
        for one, two in zip(
            weights(tmp_path), weights(run.workdir), strict=True
        ):
            np.testing.assert_array_equal(one, two)

    @pytest.mark.slow
    def test_other_ways_to_compute_are_the_same(self, data, tmp_path):
        exact = self.case.train(data, tmp_path / "exact", **EXACT).records
        assert len(exact) == 5
        for number, way in enumerate(self.ways):
            workdir = tmp_path / str(number)
            records = self.case.train(data, workdir, **EXACT, **way).records
            for one, two in zip(exact, records, strict=True):
                # The loop adds up in float32, whatever the model computes in.
                rough = max(1e-6, self.tolerance)
                assert two == pytest.approx(one, rel=rough), way
            fine = pytest.approx(exact[-1], rel=self.tolerance)
            assert records[-1] == fine, way


class CorpusTaskTests(TaskTests):
    """Of tasks on text, with heads and sequences of 13."""

    model: type

    @pytest.mark.slow
    def test_second_stage_starts_from_the_first(self, run, data, tmp_path):
        changes = {"sequence_length": 17, "init": run.preset, "dropout": 0.3}
        changes |= {"warmup_steps": 0, "learning_rate": 0.0}
        second_stage = self.case.train(data, tmp_path, **changes)
        assert "heads of size 13" in second_stage.said
        first, second = (
            self.model.from_preset(str(each.preset))
            for each in (run, second_stage)
        )
        assert first.preprocessor.sequence_length == 13
        assert second.preprocessor.sequence_length == 17
        for a, b in zip(first.weights, second.weights, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
