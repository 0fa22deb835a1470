"""A worker that is killed in a real run of two, which ends as without it."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.training import tiny, workers
from tests.training.task_tests import difference
from training.pretrain import train as pretrain


def run(data, workdir, strategy):
    """In float64, as workers add up in another order each time."""
    return tiny.pretraining(
        data,
        workdir,
        strategy=strategy,
        dtype="float64",
        dropout=0.0,
        steps=24,
        log_interval=2,
        evaluation_interval=12,
        checkpoint_interval=6,
    )


def start(data, folder):
    return workers.start(
        *("-m", "training.launch", "local"),
        *("--num_workers", "2", "--restart_delay", "0"),
        *("--logs", str(folder / "logs"), "--"),
        *(sys.executable, "-m", "training.pretrain"),
        *tiny.flags(run(data, folder / "train", "multi_worker"), "small"),
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        stderr=subprocess.PIPE,
    )


def worker(launcher, index):
    (found,) = (
        child
        for child in psutil.Process(launcher.pid).children()
        if json.loads(child.environ()["TF_CONFIG"])["task"]["index"] == index
    )
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, optimized_graphs, tmp_path_factory):
    """The folder of a run that nothing happens to, on one device."""
    workdir = tmp_path_factory.mktemp("whole")
    pretrain(run(data, workdir, "one_device"))
    assert len(tiny.metrics(workdir)) == 15
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize(
    "index, sent",
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGTERM)],
)
def test_lost_worker(data, whole, tmp_path, index, sent):
    launcher = start(data, tmp_path)
    train = tmp_path / "train"
    while tiny.newest_step(train / "checkpoints") is None:
        assert launcher.poll() is None
        time.sleep(0.005)
    worker(launcher, index).send_signal(sent)
    _, said = launcher.communicate()
    assert launcher.returncode == 0, said
    assert "restart 1 of 10" in said
    assert (train / "preset").exists()
    for one, other in zip(
        tiny.metrics(whole), tiny.metrics(train), strict=True
    ):
        assert other == pytest.approx(one, rel=1e-6)
    assert difference(train, whole) < 1e-9
