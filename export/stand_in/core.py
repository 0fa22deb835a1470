"""The models of a `ModelServerConfig`, by name, and the labels of versions.

After TensorFlow Serving's `model_servers/server_core.cc` and
`sources/storage_path/file_system_storage_path_source.cc`.
"""

import dataclasses
import logging
import pathlib
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

from google.protobuf.message import Message

from export import files, messages, session
from export.stand_in import model

_codes = messages.error_codes_pb2
_log = logging.getLogger(__name__)
_PLATFORM = "tensorflow"
_State = messages.get_model_status_pb2.ModelVersionStatus


def invalid_argument(message: str) -> session.StatusError:
    return session.StatusError(_codes.INVALID_ARGUMENT, message)


def failed_precondition(message: str) -> session.StatusError:
    return session.StatusError(_codes.FAILED_PRECONDITION, message)


class TooLarge(session.StatusError):
    """A request over a limit: RESOURCE_EXHAUSTED, or 413 over REST.

    `what` is such as `1025 texts`, `flag` the flag of `export.serve` that
    sets the limit.
    """

    def __init__(self, what: str, flag: str, limit: int):
        super().__init__(
            _codes.RESOURCE_EXHAUSTED,
            f"The request holds {what}; the stand-in takes {limit}. Send "
            f"smaller requests, or raise --{flag}.",
        )


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that one request may hold: bytes, also after decompression;
    texts, and other elements, of all its inputs together."""

    max_request_bytes: int = 16 * 2**20
    max_request_elements: int = 2**17
    max_request_texts: int = 2**10

    def check(self, sizes: Iterable[tuple[bool, int]]) -> None:
        """Checks inputs: whether each is text, and its number of elements."""
        counts = {"texts": 0, "elements": 0}
        for is_text, count in sizes:
            kind = "texts" if is_text else "elements"
            counts[kind] += max(count, 1)  # an empty input takes memory too
            flag = f"max_request_{kind}"
            limit = getattr(self, flag)
            if counts[kind] > limit:
                raise TooLarge(f"{counts[kind]} {kind}", flag, limit)


class Core:
    """Serves what its configuration names.

    One thread at a time may call `configure`, `refresh`, `start` and `close`;
    any thread may call the other methods. With `labels_for_unavailable` a new
    label may name a version that is not available yet.
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
        self._models: dict[str, model.Model] = {}
        self._labels: dict[tuple[str, str], int] = {}

    def configure(self, config: Message) -> None:
        """Replaces the configuration by a `ModelServerConfig`; `refresh` loads
        its models. After an error the previous configuration stays."""
        configs = {}
        for entry in config.model_config_list.config:
            if entry.name in configs:
                raise invalid_argument(
                    f"Illegal to list model {entry.name} multiple times in "
                    "config list"
                )
            if not pathlib.PurePath(entry.base_path).is_absolute():
                raise invalid_argument(
                    f"Expected model {entry.name} to have an absolute path or "
                    f"URI; got base_path()={entry.base_path}"
                )
            if entry.model_platform != _PLATFORM:
                raise invalid_argument(
                    f"Model {entry.name} requests unsupported platform "
                    f"{entry.model_platform}"
                )
            configs[entry.name] = entry
        self._labels = {
            (entry.name, label): self._check_label(entry.name, label, number)
            for entry in configs.values()
            for label, number in entry.version_labels.items()
        }
        new = {
            name: model.Model(name, *self._retries)
            for name in configs
            if name not in self._models
        }
        self._models, self._configs = {**self._models, **new}, configs

    def _check_label(self, name, label, number):
        state, _ = self.states(name).get(number, (None, None))
        is_new = self._labels.get((name, label), number) == number
        if state != _State.AVAILABLE and not (
            is_new and self._labels_for_unavailable
        ):
            raise failed_precondition(
                f"Request to assign label to version {number} of model {name}, "
                "which is not currently available for inference"
            )
        return number

    def refresh(self) -> None:
        """Looks for versions, loads the wanted ones, unloads the others."""
        for name, served in self._models.items():
            if name in self._configs:
                _look(served, self._configs[name])
            else:
                served.want({})
            served.advance()

    def start(self, seconds: float) -> None:
        """Waits until every model has an available version, looking for
        versions every few seconds.

        Raises a `StatusError` if the only version of a model does not load.
        """
        while True:
            self.refresh()
            waiting, failed = False, []
            for name in self._models:
                states = self.states(name)
                if any(s == _State.AVAILABLE for s, _ in states.values()):
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
                    messages.error_codes_pb2.UNKNOWN,
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
            raise model.not_found(spec.name, number)
        return self._models[spec.name].use(number)

    def states(self, name: str) -> model.States:
        """Returns `Model.states`; empty for an unknown model."""
        served = self._models.get(name)
        return served.states() if served else {}

    def close(self) -> None:
        """Unloads everything."""
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
        _log.error(
            "%s: could not find base path %s: %s",
            config.name,
            base_path,
            error.strerror,
        )
        return
    wanted = _wanted(found, config.model_version_policy)
    if not wanted:
        _log.warning(
            "%s: no versions found under base path %s", config.name, base_path
        )
    served.want(wanted)


def _wanted(found, policy):
    """Chooses versions by a `ServableVersionPolicy`; by default the newest."""
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return found
    if choice == "specific":
        numbers = [n for n in policy.specific.versions if n in found]
    else:
        count = max(policy.latest.num_versions, 1)
        numbers = sorted(found, reverse=True)[:count]
    return {number: found[number] for number in numbers}
