"""A server of this machine alone, for as long as a program needs one."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import typing

from export import client, stand_in
from export.files import versions

_ROOT = pathlib.Path(__file__).parents[1]
_START_SECONDS = 300
_STOP_SECONDS = 30


def free_ports(count):
    """Finds ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [opened.getsockname()[1] for opened in sockets]


@dataclasses.dataclass(frozen=True)
class LocalServer:
    """A running process of `export.serve`.

    Attributes:
        grpc_url: `grpc://127.0.0.1:PORT`.
        rest_url: `http://127.0.0.1:PORT`.
        process: the `subprocess.Popen`.
    """

    grpc_url: str
    rest_url: str
    process: subprocess.Popen
    _log: typing.BinaryIO

    def log(self):
        """Returns what the server has printed so far."""
        # Not by read(), which would move the place the server writes at.
        descriptor = self._log.fileno()
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return content.decode(errors="replace")


@contextlib.contextmanager
def running(model_name, model_base_path, *flags):
    """Serves one model on free ports of the loopback interface, as a context.

    Args:
        model_name: the model's name in requests.
        model_base_path: path of the folder of versions.
        *flags: further words for the command line of `export.serve`.

    Yields:
        A `LocalServer` whose model is available; it is stopped in the end.

    Raises:
        ValueError: if the folder has no version, for which a server waits.
        ServerError: if the server ends, or is not ready in time; with the
            last line of its log.
    """
    folder = pathlib.Path(model_base_path).resolve()
    if folder.is_dir() and not versions.find(folder):
        raise ValueError(
            f"`model_base_path` {folder} has no version folder. Export one "
            "with `python -m export.saved_model`."
        )
    words = ("--model_name", model_name, "--model_base_path", str(folder))
    # A version that does not load now will not in a minute.
    with started(
        model_name, *words, "--max_num_load_retries", "0", *flags
    ) as server:
        yield server


@contextlib.contextmanager
def started(model_name, *flags):
    """Serves on free ports of the loopback interface, as a context.

    Where `tensorflow_model_server` is installed, it serves on every interface.

    Args:
        model_name: name of one of the models.
        *flags: the command line of `export.serve`, without ports.

    Yields:
        A `LocalServer` whose model is available; it is stopped in the end.

    Raises:
        ServerError: if the server ends, or is not ready in time; with the
            last line of its log.
    """
    port, rest_port = free_ports(2)
    command = [
        *(sys.executable, "-m", "export.serve", *flags),
        *("--port", str(port), "--rest_api_port", str(rest_port)),
    ]
    if shutil.which(stand_in.BINARY):
        command += ["--host", stand_in.EVERY_INTERFACE]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log)
        server = LocalServer(
            f"grpc://127.0.0.1:{port}",
            f"http://127.0.0.1:{rest_port}",
            process,
            log,
        )
        try:
            _wait(server, model_name)
            yield server
        finally:
            _stop(process)


def _wait(server, model_name):
    with client.connect(server.grpc_url, model_name) as connection:
        try:
            connection.wait_until_ready(
                _START_SECONDS, lambda: server.process.poll() is None
            )
        except client.ServerError as error:
            last = server.log().strip().rpartition("\n")[2]
            raise client.ServerError(
                f"The server did not start: {last}"
            ) from error


def _stop(process):
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
