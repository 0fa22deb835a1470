"""Checkpoints that are damaged, and real runs that stop and go on."""

import os
import signal
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from tests.training import tiny, workers
from tests.training.task_tests import Case, difference
from training import pretrain
from training.engine.recovery import RestoredCheckpointManager
from training.masked_lm.configs import NAMED_RUNS


class Run:
    """A step counter and a large enough variable, which follows it."""

    def __init__(self, source, directory=None):
        self.step = tf.Variable(0, dtype=tf.int64)
        self.weights = tf.Variable(np.zeros([31, 37]))
        self.said = []
        self.manager = RestoredCheckpointManager(
            tf.train.Checkpoint(step=self.step, weights=self.weights),
            source=source,
            directory=directory or source,
            step_counter=self.step,
            say=self.said.append,
            max_to_keep=3,
            checkpoint_interval=2,
        )

    def train(self, until):
        while self.step < until:
            self.step.assign_add(1)
            self.weights.assign_add(tf.ones([31, 37], tf.float64))
            self.manager.save(checkpoint_number=self.step)

    @property
    def at(self):
        (weight,) = set(self.weights.numpy().ravel())
        assert self.step.numpy() == weight
        return weight


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of the updates 1, 3 and 5."""
    Run(tmp_path).train(6)
    assert {p.name for p in tmp_path.glob("*.index")} == {
        "ckpt-1.index",
        "ckpt-3.index",
        "ckpt-5.index",
    }
    return tmp_path


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage, file",
    [
        *((flip, "data-00000-of-00001"), (flip, "index")),
        *((cut, "data-00000-of-00001"), (empty, "index")),
        *((os.remove, "data-00000-of-00001"), (os.remove, "index")),
    ],
)
def test_goes_back_to_the_one_before(folder, damage, file):
    damage(folder / f"ckpt-5.{file}")
    run = Run(folder)
    assert run.at == 3
    # One without an index was never finished: there is nothing to say.
    if (damage, file) != (os.remove, "index"):
        (said,) = run.said
        assert "ckpt-5 is damaged, going back to the one before" in said
    run.train(9)
    assert run.at == Run(folder).at == 9


def test_all_damaged(folder):
    for path in folder.glob("*.data*"):
        flip(path)
    with pytest.raises(ValueError, match="none of the checkpoints in"):
        Run(folder)


def test_whole_one_needs_no_state_file_and_none_is_a_start(folder):
    (folder / "checkpoint").unlink()
    assert Run(folder).at == 5
    assert Run(folder / "new").at == 0


def test_another_worker_restores_the_same_and_writes_elsewhere(
    folder, tmp_path_factory
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    run = Run(folder, elsewhere)
    assert run.at == 5
    run.train(7)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert (elsewhere / "ckpt-7.index").exists()


def test_interval_counts_from_the_restored_one(folder):
    run = Run(folder)
    run.train(6)
    assert not (folder / "ckpt-6.index").exists()
    run.train(7)
    assert (folder / "ckpt-7.index").exists()


CASE = Case(
    pretrain,
    NAMED_RUNS,
    tiny.pretraining,
    {
        "dropout": 0.1,
        "steps": 60,
        "shuffle_tokens": 150,  # each shard is loaded again and again
        "log_interval": 2,
        "evaluation_interval": 30,
        "checkpoint_interval": 10,
    },
    tiny.write_text,
)


@pytest.fixture(scope="module")
def whole(optimized_graphs, run):
    """A run that nothing stops."""
    assert len(run.records) == 33
    return run


def assert_goes_on_exactly(data, workdir, whole):
    assert not (workdir / "preset").exists()
    again = CASE.train(data, workdir)
    assert again.preset.exists()
    assert again.records == whole.records
    assert difference(workdir, whole.workdir) == 0.0


@pytest.mark.slow
def test_killed_process(data, whole, tmp_path):
    words = ["-m", "training.pretrain", *CASE.args(data, tmp_path)]
    process = workers.start(*words, stderr=subprocess.PIPE)
    workers.wait_for_checkpoint(process, tmp_path)
    process.kill()
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert_goes_on_exactly(data, tmp_path, whole)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["train-00001", "heldout-00000"])
def test_shard_that_is_damaged(damaged, data, whole, tmp_path, capsys):
    shard = data / f"{damaged}.tfrecord"
    before = shard.read_bytes()
    flip(shard)
    assert f"{shard} is damaged" in CASE.error(capsys, data, tmp_path)
    shard.write_bytes(before)
    assert_goes_on_exactly(data, tmp_path, whole)
