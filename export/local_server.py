"""A server of this machine alone, for as long as a program needs one."""

import contextlib
import dataclasses
import pathlib
import socket
import subprocess
import sys
import tempfile
import typing

from export import client

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
    _log: typing.TextIO

    def log(self):
        """Returns what the server has printed so far."""
        self._log.seek(0)
        return self._log.read()


@contextlib.contextmanager
def running(model_name, model_base_path):
    """Serves on free ports of the loopback interface, as a context.

    Args:
        model_name: the model's name in requests.
        model_base_path: path of the folder of versions.

    Yields:
        A `LocalServer` whose model is available; it is stopped in the end.

    Raises:
        ServerError: if the server ends, or is not ready in time; with the
            last line of its log.
    """
    port, rest_port = free_ports(2)
    folder = pathlib.Path(model_base_path).resolve()
    command = [
        *(sys.executable, "-m", "export.serve"),
        *("--model_name", model_name, "--model_base_path", str(folder)),
        *("--port", str(port), "--rest_api_port", str(rest_port)),
    ]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
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
