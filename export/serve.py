"""Serves folders of versions over gRPC and REST.

`python -m export.serve --model_name NAME --model_base_path DIR` starts
`tensorflow_model_server` if it is installed, else a stand-in
(`export/stand_in`) that answers the same calls. Its log says which.
"""

import contextlib
import ctypes
import dataclasses
import logging
import os
import pathlib
import resource
import shutil
import signal
import sys
import threading
import time

import tyro
from google.protobuf import text_format

from export import cli, messages, session, stand_in
from export.stand_in import core, rest, rpc

_GRACE_SECONDS = 5
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Serve models, the newest version of each, over gRPC and REST.

    The flags are those of tensorflow_model_server, which serves if it is
    installed. If not, a stand-in serves, and says so.
    """

    model_name: str = "default"
    """The model's name in requests."""

    model_base_path: pathlib.Path | None = None
    """The folder of versions; a new one is loaded as it appears."""

    model_config_file: pathlib.Path | None = None
    """Instead of these two: a ModelServerConfig, as text, with several models,
    chosen versions and labels."""

    model_config_file_poll_wait_seconds: int = 0
    """Seconds between two reads of that file; 0 to read it once."""

    allow_version_labels_for_unavailable_models: bool = False
    """Whether a new label may name a version that is not loaded yet; at start
    none is."""

    port: int = 8500
    """The gRPC port."""

    rest_api_port: int = 8501
    """The REST port."""

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for every interface, the only choice
    that tensorflow_model_server has."""

    file_system_poll_wait_seconds: int = 1
    """Seconds between two looks for versions, at least 1."""

    max_num_load_retries: int = 5
    """How often to try again to load a version that failed to load."""

    load_retry_interval_micros: int = 60_000_000
    """Microseconds between two tries."""

    limits: tyro.conf.OmitArgPrefixes[core.Limits] = core.Limits()


def _check(arguments):
    base_path, config = arguments.model_base_path, arguments.model_config_file
    if (base_path is None) == (config is None):
        raise ValueError(
            "Pass either `model_base_path`, the folder of a model's versions, "
            "or `model_config_file`."
        )
    if base_path is not None and not base_path.is_dir():
        raise ValueError(
            f"`model_base_path` is not a folder, received {base_path}."
        )
    seconds = arguments.file_system_poll_wait_seconds
    if seconds < 1:
        raise ValueError(
            "`file_system_poll_wait_seconds` must be at least 1, received "
            f"{seconds}."
        )


def _become_model_server(binary, arguments):
    if arguments.host != stand_in.EVERY_INTERFACE:
        raise ValueError(
            f"`host` {arguments.host} cannot be served: {binary} listens on "
            "every interface. Pass `--host 0.0.0.0` if it may, or take it off "
            "PATH for the stand-in."
        )
    words = [binary]
    for name, value in vars(arguments).items():
        if isinstance(value, pathlib.Path):
            value = value.resolve()
        elif isinstance(value, bool):
            value = str(value).lower()
        if value is not None and name not in ("host", "limits"):
            words.append(f"--{name}={value}")
    _log.info("%s is installed and serves on every interface", binary)
    os.execv(binary, words)


def _read_config(arguments):
    """Returns the `ModelServerConfig` of the arguments."""
    config = messages.model_server_config_pb2.ModelServerConfig()
    path = arguments.model_config_file
    if path is None:
        config.model_config_list.config.add(
            name=arguments.model_name,
            base_path=str(arguments.model_base_path.resolve()),
            model_platform="tensorflow",
        )
        return config
    try:
        return text_format.Parse(path.read_bytes(), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(
            f"`model_config_file` {path} is no ModelServerConfig: {error}"
        ) from error


def _watch(models, arguments, stopping):
    """Looks for new configurations and versions until an event is set."""
    config_seconds = arguments.model_config_file_poll_wait_seconds
    read_at = time.monotonic() + config_seconds
    while not stopping.wait(arguments.file_system_poll_wait_seconds):
        if config_seconds and time.monotonic() >= read_at:
            read_at += config_seconds
            try:
                models.configure(_read_config(arguments))
            except (OSError, ValueError, session.StatusError) as error:
                _log.error("the configuration stays as it was: %s", error)
        models.refresh()
        # What requests have freed, glibc would keep.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


def _stand_in(arguments):
    """Serves until SIGTERM or SIGINT."""
    _log.info("%s is not installed; a stand-in for it serves", stand_in.BINARY)
    # oneDNN's own allocator never gives memory back.
    os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
    models = core.Core(
        arguments.max_num_load_retries,
        arguments.load_retry_interval_micros / 1e6,
        arguments.allow_version_labels_for_unavailable_models,
        arguments.limits,
    )
    # As many connections as the machine allows.
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    threads = 4 * (os.cpu_count() or 1)  # as the model server's REST
    host, port = arguments.host, arguments.port
    rest_port = arguments.rest_api_port
    with contextlib.ExitStack() as stack:
        stack.callback(models.close)
        try:
            models.configure(_read_config(arguments))
            models.start(arguments.file_system_poll_wait_seconds)
        except session.StatusError as error:
            raise ValueError(f"Failed to start server: {error}") from error
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        calls = rpc.start(models, f"{host}:{port}", threads)
        stack.callback(lambda: calls.stop(_GRACE_SECONDS).wait())
        web = rest.create_server(models, host, rest_port, threads)
        stack.callback(web.close)
        stopping = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=[models, arguments, stopping]
        )
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(stopping.set)
        ready = "ready: gRPC on %s:%d, REST on http://%s:%d"
        _log.info(ready, host, port, host, rest_port)
        # Returns at SystemExit and KeyboardInterrupt.
        web.run()
    _log.info("stopped")


def main(arguments: Arguments) -> int:
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(message)s"
    )
    _check(arguments)
    binary = shutil.which(stand_in.BINARY)
    if binary:
        _become_model_server(binary, arguments)
    _stand_in(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
