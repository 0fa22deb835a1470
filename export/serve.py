"""Serves a folder of versions over gRPC and REST.

`python -m export.serve --model_name NAME --model_base_path DIR` becomes
`tensorflow_model_server` where that is installed; elsewhere a stand-in
(`export/stand_in`) answers the same calls. It says which of the two it is.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import sys
import threading

import waitress

from export import cli
from export.stand_in import manager, rest, rpc

BINARY = "tensorflow_model_server"
IDENT = "keras_fixedhead stand-in for tensorflow_model_server"
_LOOPBACK = "127.0.0.1"
_GRACE_SECONDS = 5


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Serve the newest version of a model over gRPC and REST.

    The flags are those of tensorflow_model_server, which takes over where it
    is installed; a stand-in for it answers where it is not, and says so.
    """

    model_name: str
    """The model's name in requests."""

    model_base_path: pathlib.Path
    """The folder of versions; a new one is loaded as it appears."""

    port: int = 8500
    """The port of gRPC."""

    rest_api_port: int = 8501
    """The port of REST."""

    host: str = _LOOPBACK
    """The address the stand-in listens on; 0.0.0.0 for every interface. The
    model server itself listens on every interface."""

    file_system_poll_wait_seconds: int = 1
    """Seconds between two looks at the folder."""


def _say(line):
    print(line, flush=True)


def _become_model_server(binary, arguments):
    """Replaces this process with the model server."""
    if arguments.host not in (_LOOPBACK, "0.0.0.0"):
        raise ValueError(
            f"`host` cannot be chosen for {BINARY}, received {arguments.host}."
        )
    _say(f"{binary} is installed and serves (on every interface)")
    seconds = arguments.file_system_poll_wait_seconds
    os.execv(
        binary,
        [
            binary,
            f"--model_name={arguments.model_name}",
            f"--model_base_path={arguments.model_base_path.resolve()}",
            f"--port={arguments.port}",
            f"--rest_api_port={arguments.rest_api_port}",
            f"--file_system_poll_wait_seconds={seconds}",
        ],
    )


@contextlib.contextmanager
def _watching(models, seconds):
    """Loads new versions in the background."""
    stopping = threading.Event()

    def watch():
        while not stopping.wait(seconds):
            try:
                for line in models.refresh():
                    _say(line)
            except OSError as error:
                _say(f"cannot look for versions: {error}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stopping.set()
        watcher.join()


def _stand_in(arguments):
    """Serves until SIGTERM or SIGINT."""
    _say(f"{BINARY} is not installed; a stand-in for it serves")
    models = manager.Manager(arguments.model_name, arguments.model_base_path)
    lines = models.refresh()
    if not lines:
        raise ValueError(
            f"`model_base_path` {arguments.model_base_path} has no version "
            "folder. Export one with `python -m export.saved_model`."
        )
    for line in lines:
        _say(line)
    if not models.is_available():
        raise ValueError(
            f"`model_base_path` {arguments.model_base_path}: the newest "
            "version does not load."
        )
    # As many as the model server has for REST.
    threads = 4 * (os.cpu_count() or 1)
    with contextlib.ExitStack() as stack:
        stack.callback(models.close)
        calls = rpc.start(
            models, f"{arguments.host}:{arguments.port}", threads, IDENT
        )
        stack.callback(lambda: calls.stop(_GRACE_SECONDS).wait())
        web = waitress.create_server(
            rest.Application(models),
            host=arguments.host,
            port=arguments.rest_api_port,
            threads=threads,
            ident=IDENT,
        )
        stack.callback(web.close)
        stack.enter_context(
            _watching(models, arguments.file_system_poll_wait_seconds)
        )
        # `web.run` returns at SystemExit and KeyboardInterrupt.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        _say(
            f"ready: gRPC on {arguments.host}:{arguments.port}, REST on "
            f"http://{arguments.host}:{arguments.rest_api_port}"
        )
        web.run()
    _say("stopped")


def main(arguments):
    """Serves; returns the exit status."""
    if not arguments.model_base_path.is_dir():
        raise ValueError(
            "`model_base_path` is not a folder, received "
            f"{arguments.model_base_path}."
        )
    binary = shutil.which(BINARY)
    if binary:
        _become_model_server(binary, arguments)
    _stand_in(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
