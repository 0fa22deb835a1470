"""Worker processes of one run, on this machine."""

import json
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


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


def start(workers, index, module, args, **kwargs):
    """Starts one of the workers, `python -m module args`."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *args],
        cwd=ROOT,
        env={
            **ENVIRONMENT,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CONFIG": tf_config(workers, index),
        },
        **kwargs,
    )
