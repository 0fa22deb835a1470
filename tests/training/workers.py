"""Processes of a run, on this machine."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from tests.training import tiny

ROOT = pathlib.Path(__file__).parents[2]


def start(*words, environment=None, **kwargs):
    """Starts `python words`, with changes of the environment."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})},
        text=True,
        **kwargs,
    )


def addresses(count):
    """Addresses on loopback that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    taken = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for listening in sockets:
        listening.close()
    return taken


def tf_config(workers, index):
    """What TF_CONFIG is for one of the workers."""
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def wait_for_checkpoint(process, workdir):
    """Waits for the first checkpoint of a run, or for its end."""
    while process.poll() is None:
        if tiny.newest_step(workdir / "checkpoints") is not None:
            break
        time.sleep(0.005)


def start_two(*words, **kwargs):
    """Starts `python words` as each of two workers."""
    both = addresses(2)
    return [
        start(
            *words,
            environment={
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CONFIG": tf_config(both, index),
            },
            **kwargs,
        )
        for index in (0, 1)
    ]
