"""What stops a real run, and that it then goes on as if nothing had."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.training import tiny, workers
from tests.training.engine.two_replicas import difference
from training import pretrain


def flags(data, workdir):
    run = tiny.pretraining(
        data,
        workdir,
        steps=60,
        shuffle_tokens=150,  # each shard is loaded again and again
        log_interval=2,
        evaluation_interval=30,
        checkpoint_interval=10,
    )
    assert run.model.dropout > 0
    return tiny.flags(run, "small")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, optimized_graphs, tmp_path_factory):
    """The folder of a run that nothing stops."""
    workdir = tmp_path_factory.mktemp("whole")
    assert pretrain.main(flags(data, workdir)) == 0
    assert len(tiny.metrics(workdir)) == 33
    return workdir


def first_checkpoint(workdir, alive):
    while alive() and tiny.newest_step(workdir / "checkpoints") is None:
        time.sleep(0.005)


@contextlib.contextmanager
def at_first_checkpoint(workdir, action):
    """Does something to the run in the block, soon after it has saved."""
    over = threading.Event()

    def act():
        first_checkpoint(workdir, lambda: not over.is_set())
        action()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def assert_goes_on_exactly(data, workdir, whole):
    assert not (workdir / "preset").exists()
    assert pretrain.main(flags(data, workdir)) == 0
    assert (workdir / "preset").exists()
    assert tiny.metrics(workdir) == tiny.metrics(whole)
    assert difference(workdir, whole) == 0.0


# That of test_launch_training.py is not slow.
@pytest.mark.slow
@pytest.mark.parametrize(
    "sent, status",
    [
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGTERM, 128 + signal.SIGTERM),
    ],
)
def test_signal(sent, status, data, whole, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "training.pretrain", *flags(data, tmp_path)],
        cwd=workers.ROOT,
        env=workers.ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    first_checkpoint(tmp_path, lambda: process.poll() is None)
    process.send_signal(sent)
    _, said = process.communicate()
    assert process.returncode == status, said
    if sent == signal.SIGTERM:
        line = said.splitlines()[-1]
        saved = tiny.newest_step(tmp_path / "checkpoints")
        assert f"SIGTERM after step {saved}; the same command" in line
    assert_goes_on_exactly(data, tmp_path, whole)


@pytest.mark.slow
def test_shard_that_vanishes_and_a_full_disk(data, whole, tmp_path, capsys):
    shard = data / "train-00001.tfrecord"
    aside = shard.with_suffix(".aside")
    with at_first_checkpoint(tmp_path, lambda: os.replace(shard, aside)):
        assert pretrain.main(flags(data, tmp_path)) == 1
    os.replace(aside, shard)
    line = capsys.readouterr().err.splitlines()[-1]
    assert "No such file or directory" in line
    assert str(shard) in line
    saved = tiny.newest_step(tmp_path / "checkpoints")
    assert saved < 60

    size = (tmp_path / f"checkpoints/ckpt-{saved}.index").stat().st_size
    with largest_file(2 * size):
        assert pretrain.main(flags(data, tmp_path)) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert str(tmp_path / "checkpoints") in line
    assert "File too large" in line
    assert "Checkpoints are kept" in line
    assert tiny.newest_step(tmp_path / "checkpoints") == saved
    assert_goes_on_exactly(data, tmp_path, whole)


@contextlib.contextmanager
def largest_file(size):
    """A disk on which no file gets larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["train-00001", "heldout-00000"])
def test_shard_that_is_damaged(damaged, data, whole, tmp_path, capsys):
    shard = data / f"{damaged}.tfrecord"
    before = shard.read_bytes()
    content = bytearray(before)
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert pretrain.main(flags(data, tmp_path)) == 1
    shard.write_bytes(before)
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{shard} is damaged" in line
    assert_goes_on_exactly(data, tmp_path, whole)
