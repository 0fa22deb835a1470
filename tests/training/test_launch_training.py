"""A worker that is killed in a real run of two, which ends as without it."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.training import tiny

ROOT = pathlib.Path(__file__).parents[2]


def start(data, folder):
    args = tiny.flags(
        data,
        folder / "train",
        strategy="multi_worker",
        steps=40,
        checkpoint_interval=10,
        dtype="float64",
    )
    launcher = [
        *(sys.executable, "-m", "training.launch", "local"),
        *("--num_workers", "2", "--restart_delay", "0"),
        *("--logs", str(folder / "logs"), "--"),
    ]
    return subprocess.Popen(
        [*launcher, sys.executable, "-m", "training.finetune", *args],
        cwd=ROOT,
    )


def worker(launcher, index):
    (found,) = (
        child
        for child in psutil.Process(launcher.pid).children()
        if json.loads(child.environ()["TF_CONFIG"])["task"]["index"] == index
    )
    return found


def losses(folder):
    records = tiny.metrics(folder / "train")
    return [record["loss"] for record in records if "loss" in record]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The losses of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    assert start(data, folder).wait() == 0
    return losses(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "index, sent",
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGTERM)],
)
def test_lost_worker(data, whole, tmp_path, index, sent):
    launcher = start(data, tmp_path)
    while not (tmp_path / "train/checkpoints/ckpt-11.index").exists():
        assert launcher.poll() is None
        time.sleep(0.02)
    worker(launcher, index).send_signal(sent)
    assert launcher.wait() == 0
    assert (tmp_path / "train" / "preset").exists()
    assert len(whole) == 40
    assert losses(tmp_path) == whole
