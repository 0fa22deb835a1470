"""The versions of one model: loading, swapping and asking them.

After TensorFlow Serving's `servables/tensorflow/predict_util.cc`,
`get_model_metadata_impl.cc`, `core/basic_manager.cc` and
`model_servers/get_model_status_impl.cc`.
"""

import contextlib
import dataclasses
import pathlib
import threading

from export import messages, session, versions, warmup

_codes = messages.error_codes_pb2
_State = messages.get_model_status_pb2.ModelVersionStatus


def invalid_argument(message):
    """Returns the error of a request that is wrong in itself."""
    return session.StatusError(_codes.INVALID_ARGUMENT, message)


@dataclasses.dataclass
class _Version:
    """A version as its manager sees it."""

    state: int = _State.LOADING
    error: session.StatusError | None = None
    model: session.SavedModelSession | None = None
    requests: int = 0  # under way


class Manager:
    """Serves the newest version in a folder of versions.

    Args:
        name: the model's name in requests.
        base_path: folder whose subfolders with a number for a name are
            versions.
    """

    def __init__(self, name, base_path):
        self.name = name
        self._base_path = pathlib.Path(base_path)
        self._versions = {}
        self._lock = threading.Lock()

    def refresh(self):
        """Loads the newest version if it is new, then lets go of older ones.

        Requests go to the old version until the new one has answered its
        warm-up, and an old one is unloaded after its last request. A version
        that does not load is not tried again.

        Returns:
            A line for each change, for the log.
        """
        newest = max(versions.find(self._base_path), default=None)
        if newest is None or newest in self._versions:
            return []
        version = _Version()
        with self._lock:
            self._versions[newest] = version
        try:
            model = session.SavedModelSession(self._base_path / str(newest))
            self._warm_up(model, self._base_path / str(newest))
        except (session.StatusError, ValueError, KeyError) as error:
            if not isinstance(error, session.StatusError):
                error = session.StatusError(_codes.UNKNOWN, str(error))
            version.state, version.error = _State.END, error
            return [f"version {newest} does not load: {error}"]
        lines = [f"version {newest} is available"]
        with self._lock:
            version.model, version.state = model, _State.AVAILABLE
            for number, older in self._versions.items():
                if number != newest and older.state == _State.AVAILABLE:
                    older.state = _State.UNLOADING
                    lines.append(f"version {number} is unloaded")
                    self._unload_if_idle(older)
        return lines

    def is_available(self):
        """Returns whether a version can be asked."""
        with self._lock:
            return any(
                version.state == _State.AVAILABLE
                for version in self._versions.values()
            )

    def _warm_up(self, model, folder):
        for request in warmup.read(folder):
            inputs = {
                name: messages.from_tensor_proto(proto)
                for name, proto in request.inputs.items()
            }
            model.run(inputs, request.model_spec.signature_name)

    def _unload_if_idle(self, version):
        if version.state == _State.UNLOADING and not version.requests:
            version.state = _State.END
            version.model.close()
            version.model = None

    @contextlib.contextmanager
    def use(self, spec):
        """Lends the version that a `ModelSpec` names, as a context.

        Yields:
            The version's number and its `SavedModelSession`.

        Raises:
            StatusError: if there is no such model or version.
        """
        with self._lock:
            number, version = self._find(spec)
            version.requests += 1
        try:
            yield number, version.model
        finally:
            with self._lock:
                version.requests -= 1
                self._unload_if_idle(version)

    def _find(self, spec):
        if not spec.name:
            raise invalid_argument("ModelSpec has no name specified.")
        if spec.version_label:
            raise invalid_argument(
                f"Unrecognized servable version label: {spec.version_label}"
            )
        available = {
            number: version
            for number, version in self._versions.items()
            if version.state == _State.AVAILABLE
        }
        wanted = f"Latest({spec.name})"
        number = max(available, default=None)
        if spec.HasField("version"):
            number = spec.version.value
            wanted = f"Specific({spec.name}, {number})"
        if spec.name != self.name or number not in available:
            raise session.StatusError(
                _codes.NOT_FOUND, f"Servable not found for request: {wanted}"
            )
        return number, available[number]

    def predict(self, request):
        """Answers a `PredictRequest` with a `PredictResponse`.

        Raises:
            StatusError: as the model server would.
        """
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        with self.use(request.model_spec) as (number, model):
            name = (
                request.model_spec.signature_name or session.DEFAULT_SIGNATURE
            )
            if name not in model.signatures:
                raise session.StatusError(
                    _codes.FAILED_PRECONDITION,
                    f'Serving signature key "{name}" not found.',
                )
            signature = model.signatures[name]
            _check_names(request, signature)
            inputs = {}
            for alias, proto in request.inputs.items():
                try:
                    inputs[alias] = messages.from_tensor_proto(proto)
                except ValueError as error:
                    raise invalid_argument(
                        f"tensor parsing error: {alias}"
                    ) from error
            answers = model.run(inputs, name, list(request.output_filter))
        response = messages.predict_pb2.PredictResponse()
        response.model_spec.name = self.name
        response.model_spec.version.value = number
        response.model_spec.signature_name = name
        for alias, array in answers.items():
            response.outputs[alias].CopyFrom(messages.to_tensor_proto(array))
        return response

    def inputs(self, spec):
        """Returns `{alias: TensorInfo}` of the signature a spec names.

        Raises:
            StatusError: if there is no such model, version or signature.
        """
        name = spec.signature_name or session.DEFAULT_SIGNATURE
        with self.use(spec) as (_, model):
            if name not in model.signatures:
                raise invalid_argument(
                    f'Serving signature name: "{name}" not found in signature '
                    "def"
                )
            return dict(model.signatures[name].inputs)

    def metadata(self, request):
        """Answers a `GetModelMetadataRequest`.

        Raises:
            StatusError: as the model server would.
        """
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        if not request.metadata_field:
            raise invalid_argument(
                "GetModelMetadataRequest must specify at least one "
                "metadata_field"
            )
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid_argument(
                    f"Metadata field {field} is not supported"
                )
        response = messages.get_model_metadata_pb2.GetModelMetadataResponse()
        signatures = messages.get_model_metadata_pb2.SignatureDefMap()
        with self.use(request.model_spec) as (number, model):
            for name, signature in model.meta_graph.signature_def.items():
                signatures.signature_def[name].CopyFrom(signature)
        response.model_spec.name = self.name
        response.model_spec.version.value = number
        response.metadata["signature_def"].Pack(signatures)
        return response

    def status(self, request):
        """Answers a `GetModelStatusRequest`.

        Raises:
            StatusError: if there is no such model or version.
        """
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        spec = request.model_spec
        with self._lock:
            known = dict(self._versions) if spec.name == self.name else {}
        missing = f"Could not find any versions of model {spec.name}"
        if spec.HasField("version"):
            number = spec.version.value
            known = {n: v for n, v in known.items() if n == number}
            missing = f"Could not find version {number} of model {spec.name}"
        if not known:
            raise session.StatusError(_codes.NOT_FOUND, missing)
        response = messages.get_model_status_pb2.GetModelStatusResponse()
        for number, version in sorted(known.items(), reverse=True):
            status = response.model_version_status.add(
                version=number, state=version.state
            )
            status.status.error_code = _codes.OK
            if version.error:
                status.status.error_code = version.error.code
                status.status.error_message = version.error.message
        return response

    def close(self):
        """Unloads every version; those in use after their last request."""
        with self._lock:
            for version in self._versions.values():
                if version.state == _State.AVAILABLE:
                    version.state = _State.UNLOADING
                    self._unload_if_idle(version)


def _check_names(request, signature):
    """Checks a request's input and output names against its signature."""

    def braces(names):
        return "{" + ",".join(sorted(names)) + "}"

    sent, wanted = set(request.inputs), set(signature.inputs)
    if len(sent) != len(wanted):
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({braces(sent)}) != len({braces(wanted)}). "
            f"Sent extra: {braces(sent - wanted)}. "
            f"Missing but required: {braces(wanted - sent)}."
        )
    for alias in sorted(wanted - sent):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: "
            f"{signature.inputs[alias].name}) not found in request and no "
            "default value provided. Inputs expected to be in the request "
            f"{braces(sent)}, or default input alias set: "
        )
    seen = set()
    for alias in request.output_filter:
        if alias not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} Outputs "
                f"expected to be in the set {braces(signature.outputs)}."
            )
        if alias in seen:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")
        seen.add(alias)
