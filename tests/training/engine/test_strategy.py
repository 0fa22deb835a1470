"""Strategies by name, where one cannot be had, and waiting for workers."""

import signal
import socket
import subprocess
import threading
import time

import pytest
import tensorflow as tf

from tests.training import workers
from training.engine import strategy as strategy_module
from training.engine.strategy import (
    get_strategy,
    replica_batch_size,
    wait_for_workers,
    worker_number,
)


@pytest.mark.parametrize(
    "text",
    [
        *(None, "not JSON", "[]"),
        *(workers.tf_config(["a:0"], 0), workers.tf_config(["a:1"], 1)),
    ],
)
def test_multi_worker_asks_for_a_valid_tf_config(text, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG, .* of the form"):
        get_strategy("multi_worker")


def test_no_tpu(monkeypatch):
    def resolver(tpu):
        raise ValueError("Please provide a TPU Name to connect to.")

    # The real one looks for a TPU in the network, for seconds.
    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", resolver
    )
    with pytest.raises(ValueError, match="found no TPU"):
        get_strategy("tpu")


@pytest.mark.parametrize(
    "cluster, task, number",
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), 0),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), 1),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("worker", 0), 1),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("chief", 0), 0),
    ],
)
def test_workers_are_numbered_from_the_chief(cluster, task, number):
    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type=task[0], task_id=task[1]
        )

    assert worker_number(Strategy()) == (number, 2)
    assert worker_number(get_strategy("one_device")) == (0, 1)


def test_batches_divide_over_replicas():
    assert replica_batch_size(21, 3) == 7
    for size in (0, -3, 22):
        with pytest.raises(ValueError, match=f"Received: {size}"):
            replica_batch_size(size, 3)


def test_waits_for_who_comes_late(capsys, monkeypatch):
    monkeypatch.setattr(strategy_module, "_FIRST_REMINDER", 0.3)
    addresses = workers.addresses(3)
    waiting = [
        threading.Thread(target=wait_for_workers, args=(addresses, own))
        for own in (addresses[2], addresses[0])
    ]
    for thread in waiting:
        thread.start()
    said = ""
    while said.count("waiting for worker ") < 2:
        time.sleep(0.05)
        said += capsys.readouterr().err
    assert all(addresses[1] in line for line in said.splitlines())
    assert all(thread.is_alive() for thread in waiting)
    # It needs no listener of its own while the others look.
    with socket.create_server(("127.0.0.1", int(addresses[1].split(":")[1]))):
        for thread in waiting:
            thread.join(timeout=30)
            assert not thread.is_alive()


@pytest.mark.slow
def test_signal_ends_a_worker_that_does_not_train_yet():
    code = (
        "import time; from training.engine.strategy import get_strategy; "
        "get_strategy('multi_worker'); print('made', flush=True); "
        "time.sleep(60)"
    )
    pipe = subprocess.PIPE
    processes = workers.start_two("-c", code, stdout=pipe, stderr=pipe)
    for process in processes:
        assert process.stdout.readline() == "made\n"
    for process in processes:
        process.terminate()
    for process in processes:
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGTERM
