"""Checkpoints that are damaged in the ways a crash or a disk damages them."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from training.engine.recovery import RestoredCheckpointManager


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


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip, cut, empty, remove])
@pytest.mark.parametrize("file", ["data-00000-of-00001", "index"])
def test_goes_back_to_the_one_before(folder, damage, file):
    damage(folder / f"ckpt-5.{file}")
    run = Run(folder)
    assert run.at == 3
    # One without an index was never finished: there is nothing to say.
    if (damage, file) != (remove, "index"):
        (said,) = run.said
        assert "ckpt-5 is damaged, going back to the one before" in said
    run.train(9)
    assert run.at == Run(folder).at == 9


def test_goes_back_two(folder):
    flip(folder / "ckpt-5.data-00000-of-00001")
    cut(folder / "ckpt-3.data-00000-of-00001")
    run = Run(folder)
    assert run.at == 1
    assert len(run.said) == 2


def test_all_damaged(folder):
    for path in folder.glob("*.data*"):
        flip(path)
    with pytest.raises(ValueError, match="none of the checkpoints in"):
        Run(folder)


def test_whole_one_needs_no_state_file(folder):
    (folder / "checkpoint").unlink()
    assert Run(folder).at == 5


def test_none_is_a_start(tmp_path):
    assert Run(tmp_path / "new").at == 0


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


def test_half_written_ones_are_cleared_away(folder):
    half = folder / "ckpt-7_temp"
    half.mkdir()
    shutil.copy(folder / "ckpt-5.data-00000-of-00001", half / "part")
    assert Run(folder).at == 5
    assert not half.exists()
