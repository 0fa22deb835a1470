"""A model server on the loopback interface, for as long as a program runs."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from export import client, files, stand_in

_ROOT = pathlib.Path(__file__).parents[1]
_START_SECONDS = 300
_STOP_SECONDS = 30


def free_ports(count: int) -> list[int]:
    """Finds ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [opened.getsockname()[1] for opened in sockets]


@dataclasses.dataclass(frozen=True)
class LocalServer:
    """A running process of `export.serve`."""

    grpc_url: str
    rest_url: str
    process: subprocess.Popen
    _log: pathlib.Path

    def log(self) -> str:
        """Returns what the server has printed so far."""
        return self._log.read_text(errors="replace")


def running(
    model_name: str, model_base_path: str | os.PathLike, *flags: str
) -> contextlib.AbstractContextManager[LocalServer]:
    """Serves a folder of versions, see `started`."""
    folder = pathlib.Path(model_base_path).resolve()
    # A server would wait for the first version.
    if folder.is_dir() and not files.find_versions(folder):
        raise ValueError(
            f"`model_base_path` {folder} has no version folder. Export one "
            "with `python -m export.saved_model`."
        )
    words = ("--model_name", model_name, "--model_base_path", str(folder))
    # A version that does not load now will not load in a minute.
    return started(model_name, *words, "--max_num_load_retries=0", *flags)


@contextlib.contextmanager
def started(model_name: str, *flags: str) -> Iterator[LocalServer]:
    """Runs `export.serve` with these flags on free ports of the loopback
    interface; `tensorflow_model_server`, if installed, on every interface.

    Yields the server once the model is available; raises a `ServerError` with
    the last line of its log if the server ends or is not ready in time.
    """
    port, rest_port = free_ports(2)
    command = [
        *(sys.executable, "-m", "export.serve", *flags),
        *("--port", str(port), "--rest_api_port", str(rest_port)),
    ]
    if shutil.which(stand_in.BINARY):
        command += ["--host", stand_in.EVERY_INTERFACE]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log)
        server = LocalServer(
            f"grpc://127.0.0.1:{port}",
            f"http://127.0.0.1:{rest_port}",
            process,
            pathlib.Path(log.name),
        )
        try:
            _wait(server, model_name)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


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
