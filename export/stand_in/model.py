"""The versions of one model: loading, swapping and lending them.

After TensorFlow Serving's `core/aspired_versions_manager.cc`,
`core/availability_preserving_policy.cc`, `core/loader_harness.cc` and
`core/basic_manager.cc`.
"""

import contextlib
import dataclasses
import logging
import pathlib
import threading
import time

from export import messages, session
from export.files import warmup
from export.stand_in import errors, memory

_log = logging.getLogger(__name__)
_State = messages.get_model_status_pb2.ModelVersionStatus


@dataclasses.dataclass
class _Version:
    folder: pathlib.Path
    wanted: bool = True
    state: int = _State.LOADING
    failures: int = 0
    error: session.StatusError | None = None  # of the last failure
    next_try: float = 0.0  # as time.monotonic()
    loaded: session.SavedModelSession | None = None
    requests: int = 0  # under way


class Model:
    """Serves the versions it is told to, and swaps them without a gap.

    `want` and `advance` are for one thread at a time; the other methods are
    for any.

    Args:
        name: the model's name in requests.
        max_num_load_retries: int, how often a version is tried again that
            does not load.
        load_retry_seconds: float, the time between two tries.
    """

    def __init__(self, name, max_num_load_retries, load_retry_seconds):
        self._name = name
        self._max_num_load_retries = max_num_load_retries
        self._load_retry_seconds = load_retry_seconds
        self._versions = {}
        self._lock = threading.Lock()

    def want(self, folders):
        """Sets which versions are to be served.

        A version that ended is loaded again only if it was unwanted in
        between. One that is being tried is given up if it is unwanted now.

        Args:
            folders: `{number: path}`.
        """
        with self._lock:
            for number, folder in folders.items():
                known = self._versions.get(number)
                if known is None or (
                    known.state == _State.END and not known.wanted
                ):
                    self._versions[number] = _Version(folder)
            for number, version in self._versions.items():
                version.wanted = number in folders
                if version.state == _State.LOADING and not version.wanted:
                    version.state = _State.END

    def advance(self):
        """Unloads and loads what is due.

        An unwanted version goes on answering until a wanted one is available,
        and is unloaded after its last request.
        """
        while self._unload_one() or self._load_one():
            pass

    def _unload_one(self):
        with self._lock:
            wanted = [v for v in self._versions.values() if v.wanted]
            unwanted = {
                number: version
                for number, version in self._versions.items()
                if version.state == _State.AVAILABLE and not version.wanted
            }
            replaced = any(v.state == _State.AVAILABLE for v in wanted)
            if not unwanted or (wanted and not replaced and len(unwanted) < 2):
                return False
            number = min(unwanted)
            unwanted[number].state = _State.UNLOADING
        _log.info("%s: version %d is unloaded", self._name, number)
        self._unload_if_idle(unwanted[number])
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
        due = [
            number
            for number, version in self._versions.items()
            if version.state == _State.LOADING and version.next_try <= now
        ]
        if not due:
            return False
        number = max(due)
        version = self._versions[number]
        try:
            loaded = _load(version.folder)
        except Exception as error:  # a folder may hold anything
            self._note_failure(number, version, error)
            return True
        with self._lock:
            version.loaded, version.state = loaded, _State.AVAILABLE
        _log.info("%s: version %d is available", self._name, number)
        return True

    def _note_failure(self, number, version, error):
        if not isinstance(error, session.StatusError):
            code = messages.error_codes_pb2.UNKNOWN
            error = session.StatusError(code, str(error))
        _log.error(
            "%s: version %d does not load: %s", self._name, number, error
        )
        with self._lock:
            version.error = error
            version.failures += 1
            if version.failures > self._max_num_load_retries:
                version.state = _State.END
        version.next_try = time.monotonic() + self._load_retry_seconds

    @contextlib.contextmanager
    def use(self, number=None):
        """Lends a version, as a context.

        Args:
            number: int, the version; None for the newest that is available.

        Yields:
            The version's number and its `SavedModelSession`.

        Raises:
            StatusError: if that version is not available.
        """
        with self._lock:
            available = {
                known: version
                for known, version in self._versions.items()
                if version.state == _State.AVAILABLE
            }
            found = max(available, default=None) if number is None else number
            if found not in available:
                raise errors.servable_not_found(self._name, number)
            version = available[found]
            version.requests += 1
        try:
            yield found, version.loaded
        finally:
            with self._lock:
                version.requests -= 1
            self._unload_if_idle(version)

    def states(self):
        """Returns `{number: (state, error)}` of every version there was.

        The newest comes first; `error` is None but for a version that ended
        because it did not load.
        """
        with self._lock:
            return {
                number: (
                    version.state,
                    version.error if version.state == _State.END else None,
                )
                for number, version in sorted(
                    self._versions.items(), reverse=True
                )
            }

    def close(self):
        """Unloads every version; those in use after their last request."""
        self.want({})
        self.advance()


def _load(folder):
    """Loads a version and replays its warm-up, without which it is not
    available."""
    with memory.loading():
        loaded = session.SavedModelSession(folder)
    try:
        for request in warmup.read(folder):
            inputs = {
                name: messages.from_tensor_proto(proto)
                for name, proto in request.inputs.items()
            }
            loaded.run(inputs, request.model_spec.signature_name)
    except BaseException:
        loaded.close()
        raise
    return loaded
