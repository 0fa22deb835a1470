"""The versions of one model: loading, swapping and lending them.

After TensorFlow Serving's `core/aspired_versions_manager.cc`,
`core/availability_preserving_policy.cc`, `core/loader_harness.cc` and
`core/basic_manager.cc`. Also keeps the memory of a long-running server small,
where glibc allocates it: see mallopt(3) and malloc_trim(3).
"""

import contextlib
import ctypes
import dataclasses
import logging
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping

from export import messages, session
from export.files import warmup

_log = logging.getLogger(__name__)
_State = messages.get_model_status_pb2.ModelVersionStatus
# {version: (state, why it did not load)}
States = dict[int, tuple[int, session.StatusError | None]]
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LOADING_BYTES = 2**20
_SERVING_BYTES = 32 * 2**20  # where glibc's own threshold ends up


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


def not_found(name: str, number: int | None) -> session.StatusError:
    """The error of a request to a model, or version, that is not served."""
    wanted = f"Latest({name})"
    if number is not None:
        wanted = f"Specific({name}, {number})"
    return session.StatusError(
        messages.error_codes_pb2.NOT_FOUND,
        f"Servable not found for request: {wanted}",
    )


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
        """Sets which versions are to be served.

        A version that ended is loaded again only if it was unwanted in
        between. An unwanted version is not tried again.
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

    def advance(self) -> None:
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
    def use(
        self, number: int | None = None
    ) -> Iterator[tuple[int, session.SavedModelSession]]:
        """Lends a version, by default the newest available one."""
        with self._lock:
            available = {
                known: version.loaded
                for known, version in self._versions.items()
                if version.state == _State.AVAILABLE and version.loaded
            }
            found = max(available, default=None) if number is None else number
            if found not in available:
                raise not_found(self._name, number)
            version = self._versions[found]
            version.requests += 1
        try:
            yield found, available[found]
        finally:
            with self._lock:
                version.requests -= 1
            self._unload_if_idle(version)

    def states(self) -> States:
        """Returns the state of every version there was, newest first.

        The error is None unless the version ended because it did not load.
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

    def close(self) -> None:
        """Unloads every version, after its last request."""
        self.want({})
        self.advance()


def _load(folder):
    """Loads a version and replays its warm-up."""
    with memory_for_loading():
        loaded = session.SavedModelSession(folder)
    try:
        for request in warmup.read(folder):
            inputs = warmup.arrays(request)
            loaded.run(inputs, request.model_spec.signature_name)
    except BaseException:
        loaded.close()
        raise
    return loaded


def _call_libc(name, *arguments):
    if function := getattr(ctypes.CDLL(None), name, None):
        function(*arguments)


def start_memory() -> None:
    """Takes every block from one arena.

    glibc has eight for each core. `malloc_trim` gives back the free end of the
    first alone, and each has its own holes.
    """
    _call_libc("mallopt", _M_ARENA_MAX, 1)
    _call_libc("mallopt", _M_MMAP_THRESHOLD, _SERVING_BYTES)
    _call_libc("mallopt", _M_TRIM_THRESHOLD, 2 * _SERVING_BYTES)


@contextlib.contextmanager
def memory_for_loading() -> Iterator[None]:
    """Maps large blocks, such as weights, on their own meanwhile.

    Among the blocks of requests, the weights of each version would leave holes
    when they go. To map every tensor of a request would double its time.
    """
    _call_libc("mallopt", _M_MMAP_THRESHOLD, _LOADING_BYTES)
    try:
        yield
    finally:
        _call_libc("mallopt", _M_MMAP_THRESHOLD, _SERVING_BYTES)


def give_back_memory() -> None:
    """Returns what requests have freed, which glibc would keep."""
    _call_libc("malloc_trim", 0)
