"""The models of a `ModelServerConfig`, their versions and labels.

After TensorFlow Serving's `model_servers/server_core.cc`,
`sources/storage_path/file_system_storage_path_source.cc`, and in `core/`
`aspired_versions_manager.cc`, `availability_preserving_policy.cc`,
`loader_harness.cc` and `basic_manager.cc`.
"""

import contextlib
import dataclasses
import logging
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from google.protobuf.message import Message

from export import files, messages, session
from export.files import warmup

_codes = messages.error_codes_pb2
_log = logging.getLogger(__name__)
_State = messages.get_model_status_pb2.ModelVersionStatus
# {version: (state, why it did not load)}
States = dict[int, tuple[int, session.StatusError | None]]


def invalid_argument(message: str) -> session.StatusError:
    return session.StatusError(_codes.INVALID_ARGUMENT, message)


class TooLarge(session.StatusError):
    """A request over a limit: RESOURCE_EXHAUSTED, or 413 over REST."""

    def __init__(self, what: str, flag: str, limit: int):
        super().__init__(
            _codes.RESOURCE_EXHAUSTED,
            f"The request holds {what}; the stand-in takes {limit}. Send "
            f"smaller requests, or raise --{flag}.",
        )


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request. tensorflow_model_server has none."""

    max_request_bytes: int = 16 * 2**20
    """The most bytes of a request to the stand-in, also after unzipping."""

    max_request_elements: int = 2**17
    """The most numbers in the inputs of a request to the stand-in."""

    max_request_texts: int = 2**10
    """The most texts in the inputs of a request to the stand-in."""

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Raises `TooLarge` for inputs that hold too much."""
        counts = {"texts": 0, "elements": 0}
        for array in inputs.values():
            kind = "texts" if array.dtype.kind == "O" else "elements"
            counts[kind] += array.size
            flag = f"max_request_{kind}"
            limit = getattr(self, flag)
            if counts[kind] > limit:
                raise TooLarge(f"{counts[kind]} {kind}", flag, limit)


@dataclasses.dataclass
class _Version:
    folder: pathlib.Path
    wanted: bool = True
    state: int = _State.LOADING
    failures: int = 0
    error: session.StatusError | None = None  # of the last failure
    next_try: float = 0.0  # as time.monotonic()
    loaded: Any = None  # the session
    requests: int = 0  # under way


def _not_found(name, number):
    wanted = f"Latest({name})"
    if number is not None:
        wanted = f"Specific({name}, {number})"
    message = f"Servable not found for request: {wanted}"
    return session.StatusError(_codes.NOT_FOUND, message)


class Model:
    """Serves the versions that `want` names, and swaps them without a gap.

    One thread at a time may call `want`, `advance` and `close`; any thread may
    call the other methods.
    """

    def __init__(
        self, name: str, max_num_load_retries: int, load_retry_seconds: float
    ):
        self._name = name
        self._max_num_load_retries = max_num_load_retries
        self._load_retry_seconds = load_retry_seconds
        self._versions: dict[int, _Version] = {}
        self._lock = threading.Lock()

    def want(self, folders: Mapping[int, pathlib.Path]) -> None:
        """Sets which versions are to be served. One that ended is loaded again
        only if it was unwanted in between."""
        with self._lock:
            for number, folder in folders.items():
                known = self._versions.get(number)
                if not known or known.state == _State.END and not known.wanted:
                    self._versions[number] = _Version(folder)
            for number, version in self._versions.items():
                version.wanted = number in folders
                if version.state == _State.LOADING and not version.wanted:
                    version.state = _State.END

    def advance(self) -> None:
        """Unloads and loads what is due. An unwanted version goes on answering
        until a wanted one is available, and ends after its last request."""
        while self._unload_one() or self._load_one():
            pass

    def _in_state(self, state):
        return {n: v for n, v in self._versions.items() if v.state == state}

    def _unload_one(self):
        with self._lock:
            available = self._in_state(_State.AVAILABLE)
            unwanted = [n for n in available if not available[n].wanted]
            wanted = any(v.wanted for v in self._versions.values())
            replaced = len(unwanted) < len(available)
            if not unwanted or (wanted and not replaced and len(unwanted) < 2):
                return False
            version = available[min(unwanted)]
            version.state = _State.UNLOADING
        _log.info("%s: version %d is unloaded", self._name, min(unwanted))
        self._unload_if_idle(version)
        return True

    def _unload_if_idle(self, version):
        with self._lock:
            if version.state != _State.UNLOADING or version.requests:
                return
            loaded, version.loaded = version.loaded, None
        if loaded:
            loaded.close()
            version.state = _State.END

    def _load_one(self):
        now = time.monotonic()
        loading = self._in_state(_State.LOADING)
        due = [n for n in loading if loading[n].next_try <= now]
        if not due:
            return False
        number, version = max(due), loading[max(due)]
        try:
            loaded = _load(version.folder)
        except Exception as error:  # a folder may hold anything
            _log.error("%s: version %d: %s", self._name, number, error)
            if not isinstance(error, session.StatusError):
                error = session.StatusError(_codes.UNKNOWN, str(error))
            with self._lock:
                version.error = error
                version.failures += 1
                if version.failures > self._max_num_load_retries:
                    version.state = _State.END
            version.next_try = time.monotonic() + self._load_retry_seconds
            return True
        with self._lock:
            version.loaded, version.state = loaded, _State.AVAILABLE
        _log.info("%s: version %d is available", self._name, number)
        return True

    @contextlib.contextmanager
    def use(
        self, number: int | None = None
    ) -> Iterator[tuple[int, session.SavedModelSession]]:
        """Lends a version, by default the newest available one."""
        with self._lock:
            available = self._in_state(_State.AVAILABLE)
            found = max(available, default=0) if number is None else number
            if found not in available:
                raise _not_found(self._name, number)
            version = available[found]
            version.requests += 1
        try:
            yield found, version.loaded
        finally:
            with self._lock:
                version.requests -= 1
            self._unload_if_idle(version)

    def states(self) -> States:
        """Returns the states of all versions so far, newest first."""
        with self._lock:
            return {
                n: (v.state, v.error if v.state == _State.END else None)
                for n, v in sorted(self._versions.items(), reverse=True)
            }

    def close(self) -> None:
        """Unloads every version, after its last request."""
        self.want({})
        self.advance()


def _load(folder):
    """Loads a version and replays its warm-up."""
    loaded = session.SavedModelSession(folder)
    try:
        for request in warmup.read(folder):
            inputs = messages.from_tensor_protos(request.inputs)
            loaded.run(inputs, request.model_spec.signature_name)
    except BaseException:
        loaded.close()
        raise
    return loaded


class Core:
    """Serves what its configuration names.

    One thread at a time may call `configure`, `refresh`, `start` and `close`;
    any thread may call the other methods.
    """

    def __init__(
        self,
        max_num_load_retries: int = 5,
        load_retry_seconds: float = 60.0,
        labels_for_unavailable: bool = False,
        limits: Limits | None = None,
    ):
        self.limits = limits or Limits()
        self._retries = max_num_load_retries, load_retry_seconds
        self._labels_for_unavailable = labels_for_unavailable
        self._configs: dict[str, Message] = {}
        # Requests read these at any time: replace them, never change them.
        self._models: dict[str, Model] = {}
        self._labels: dict[tuple[str, str], int] = {}

    def configure(self, config: Message) -> None:
        """Replaces the configuration by a `ModelServerConfig`; `refresh` loads
        its models. After an error the previous configuration stays."""
        configs = {}
        for entry in config.model_config_list.config:
            name, platform = entry.name, entry.model_platform
            if name in configs:
                raise invalid_argument(
                    f"Illegal to list model {name} multiple times in config "
                    "list"
                )
            if not pathlib.PurePath(entry.base_path).is_absolute():
                raise invalid_argument(
                    f"Expected model {name} to have an absolute path or URI; "
                    f"got base_path()={entry.base_path}"
                )
            if platform != "tensorflow":
                raise invalid_argument(
                    f"Model {name} requests unsupported platform {platform}"
                )
            configs[name] = entry
        labels = {
            (name, label): number
            for name, entry in configs.items()
            for label, number in entry.version_labels.items()
        }
        for (name, label), number in labels.items():
            state, _ = self.states(name).get(number, (None, None))
            is_new = self._labels.get((name, label), number) == number
            allowed = is_new and self._labels_for_unavailable
            if state != _State.AVAILABLE and not allowed:
                raise session.StatusError(
                    _codes.FAILED_PRECONDITION,
                    f"Request to assign label to version {number} of model "
                    f"{name}, which is not currently available for inference",
                )
        new = {name: Model(name, *self._retries) for name in configs}
        self._models, self._configs = new | self._models, configs
        self._labels = labels

    def refresh(self) -> None:
        """Looks for versions, loads the wanted ones, unloads the others."""
        for name, served in self._models.items():
            if name in self._configs:
                _look(served, self._configs[name])
            else:
                served.want({})
            served.advance()

    def start(self, seconds: float) -> None:
        """Waits until every model has an available version; raises a
        `StatusError` if the only version of a model does not load."""
        while True:
            self.refresh()
            waiting, failed = False, []
            for name in self._models:
                states = self.states(name)
                if _State.AVAILABLE in (state for state, _ in states.values()):
                    continue
                waiting = True
                failed += [
                    f"{{{{name: {name} version: {number}}} due to error: "
                    f"{error}}}"
                    for number, (_, error) in states.items()
                    if error
                ]
            if failed:
                raise session.StatusError(
                    _codes.UNKNOWN,
                    f"{len(failed)} model(s) did not become available: "
                    f"{{{', '.join(failed)}}}",
                )
            if not waiting:
                return
            time.sleep(seconds)

    def use(
        self, spec: Message
    ) -> AbstractContextManager[tuple[int, session.SavedModelSession]]:
        """Lends the version that a `ModelSpec` names, as `Model.use`."""
        if not spec.name:
            raise invalid_argument("ModelSpec has no name specified.")
        number = None
        if spec.HasField("version"):
            number = spec.version.value
        elif spec.HasField("version_label"):
            number = self._labels.get((spec.name, spec.version_label))
            if number is None:
                raise invalid_argument(
                    f"Unrecognized servable version label: {spec.version_label}"
                )
        if spec.name not in self._models:
            raise _not_found(spec.name, number)
        return self._models[spec.name].use(number)

    def states(self, name: str) -> States:
        """Returns `Model.states`; empty for an unknown model."""
        served = self._models.get(name)
        return served.states() if served else {}

    def close(self) -> None:
        for served in self._models.values():
            served.close()


def _look(served, config):
    """Tells a model which of the versions in its folder to serve."""
    base_path = pathlib.Path(config.base_path)
    try:
        # Raises if the folder is away for a moment, such as one on a network
        # drive, which must not unload everything.
        base_path.stat()
        found = files.find_versions(base_path)
    except OSError as error:
        _log.error("%s: could not find base path: %s", config.name, error)
        return
    policy = config.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        wanted = list(found)
    elif choice == "specific":
        wanted = [n for n in policy.specific.versions if n in found]
    else:
        count = max(policy.latest.num_versions, 1)
        wanted = sorted(found, reverse=True)[:count]
    if not wanted:
        _log.warning(
            "%s: no versions found under base path %s", config.name, base_path
        )
    served.want({number: found[number] for number in wanted})
