"""Two replicas make the updates that one makes on the same global batch."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from tests.training import tiny
from tests.training.two_replicas import RETRIEVAL

ROOT = pathlib.Path(__file__).parents[2]


ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.two_replicas", str(folder)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "report.json").read_text())


def test_there_are_two_replicas(report):
    assert report["replicas"] == [1, 2]


# Adam hides a factor on the gradients, SGD shows it.
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_clipped_updates_are_the_same(report, optimizer):
    assert report[optimizer]["difference"] < 1e-12
    one, two = report[optimizer]["norms"]
    assert one > 0.5  # it is clipped
    assert two == pytest.approx(one, rel=1e-6)


def test_retrieval_run_is_the_same(report):
    # Losses agree if negatives come from both replicas and the batches are
    # the same; the norms, if gradients flow back to both.
    assert len(report["one_device"]) == 6
    for one, two in zip(report["one_device"], report["mirrored"], strict=True):
        assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.slow
def test_two_workers_make_the_same_run(report, tmp_path):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    workers = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for listening in sockets:
        listening.close()
    args = tiny.flags(
        tiny.write_data(tmp_path / "data"),
        tmp_path / "train",
        strategy="multi_worker",
        **RETRIEVAL,
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "training.finetune", *args],
            cwd=ROOT,
            env={
                **ENVIRONMENT,
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"worker": workers},
                        "task": {"type": "worker", "index": index},
                    }
                ),
            },
        )
        for index in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    for one, two in zip(
        report["one_device"], tiny.metrics(tmp_path / "train"), strict=True
    ):
        assert two == pytest.approx(one, rel=1e-5)
    assert (tmp_path / "train" / "preset").exists()
