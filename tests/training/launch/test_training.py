"""A worker that is killed in a real run of two, which ends as without it."""

import json
import signal
import subprocess
import sys

import psutil
import pytest

from tests.training import tiny, workers
from tests.training.task_tests import Case, difference
from training import pretrain
from training.masked_lm.configs import NAMED_RUNS

# In float64, as workers add up in another order each time.
CASE = Case(
    pretrain,
    NAMED_RUNS,
    tiny.pretraining,
    {
        "dtype": "float64",
        "dropout": 0.0,
        "steps": 24,
        "log_interval": 2,
        "evaluation_interval": 12,
        "checkpoint_interval": 6,
    },
    tiny.write_text,
)


def worker(launcher, index):
    (found,) = (
        child
        for child in psutil.Process(launcher.pid).children()
        if json.loads(child.environ()["TF_CONFIG"])["task"]["index"] == index
    )
    return found


@pytest.fixture(scope="module")
def whole(optimized_graphs, data, tmp_path_factory):
    """A run that nothing happens to, on one device."""
    workdir = tmp_path_factory.mktemp("whole")
    whole = CASE.train(data, workdir, strategy="one_device")
    assert len(whole.records) == 15
    return whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "index, sent",
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGTERM)],
)
def test_lost_worker(data, whole, tmp_path, index, sent):
    train = tmp_path / "train"
    launcher = workers.start(
        *("-m", "training.launch", "local"),
        *("--num_workers", "2", "--restart_delay", "0"),
        *("--logs", str(tmp_path / "logs"), "--"),
        *(sys.executable, "-m", "training.pretrain"),
        *CASE.args(data, train, strategy="multi_worker"),
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        stderr=subprocess.PIPE,
    )
    workers.wait_for_checkpoint(launcher, train)
    worker(launcher, index).send_signal(sent)
    _, said = launcher.communicate()
    assert launcher.returncode == 0, said
    assert "restart 1 of 10" in said
    assert (train / "preset").exists()
    for one, other in zip(whole.records, tiny.metrics(train), strict=True):
        assert other == pytest.approx(one, rel=1e-6)
    assert difference(train, whole.workdir) < 1e-9
