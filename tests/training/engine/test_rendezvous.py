"""Workers that come late, not at all, or where somebody else is."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.training import workers
from training.engine.strategy import wait_for_workers


def start(addresses, index):
    """A process that prints a line once all workers are there."""
    return run(
        "from training.engine.strategy import wait_for_workers; "
        f"wait_for_workers({addresses}, {addresses[index]!r}); print('there')"
    )


def run(code, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=workers.ROOT,
        env={**workers.ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_waits_for_who_comes_late():
    addresses = workers.addresses(3)
    first = [start(addresses, 2), start(addresses, 0)]
    for process in first:
        line = process.stderr.readline()
        assert line.startswith("waiting for worker ")
        assert addresses[1] in line
    # It needs no listener of its own while the others look.
    with socket.create_server(("127.0.0.1", int(addresses[1].split(":")[1]))):
        for process in first:
            assert process.communicate(timeout=30)[0] == "there\n"
            assert process.returncode == 0


def test_signal_ends_the_wait():
    addresses = workers.addresses(2)
    process = start(addresses, 1)
    line = process.stderr.readline()
    assert line == f"waiting for worker {addresses[0]}\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM


def test_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen .* '{own}'"):
            wait_for_workers([own], own)


def test_one_worker_waits_for_nobody():
    (own,) = workers.addresses(1)
    begun = time.monotonic()
    wait_for_workers([own], own)
    assert time.monotonic() - begun < 5


@pytest.mark.slow
def test_signal_ends_a_worker_that_does_not_train_yet():
    addresses = workers.addresses(2)
    code = (
        "import time; from training.engine.strategy import get_strategy; "
        "get_strategy('multi_worker'); print('made', flush=True); "
        "time.sleep(60)"
    )
    processes = [
        run(
            code,
            CUDA_VISIBLE_DEVICES="-1",
            TF_CONFIG=workers.tf_config(addresses, index),
        )
        for index in (0, 1)
    ]
    for process in processes:
        assert process.stdout.readline() == "made\n"
    for process in processes:
        process.terminate()
    for process in processes:
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGTERM
