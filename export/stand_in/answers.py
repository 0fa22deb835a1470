"""What a `Core` answers to the official request messages.

After TensorFlow Serving's `servables/tensorflow/predict_util.cc` and
`get_model_metadata_impl.cc`, `model_servers/get_model_status_impl.cc`.
"""

import contextlib

from export import messages, session
from export.stand_in import errors

_SIGNATURES = "signature_def"


def _check_spec(request):
    if not request.HasField("model_spec"):
        raise errors.invalid_argument("Missing ModelSpec")


def predict(core, request):
    """Answers a `PredictRequest` with a `PredictResponse`.

    Raises:
        StatusError: as the model server would.
    """
    _check_spec(request)
    _check_size(request.inputs, core.limits)
    with core.use(request.model_spec) as (number, model):
        name = request.model_spec.signature_name or session.DEFAULT_SIGNATURE
        if name not in model.signatures:
            raise errors.failed_precondition(
                f'Serving signature key "{name}" not found.'
            )
        _check_names(request, model.signatures[name])
        inputs = {}
        for alias, proto in request.inputs.items():
            with _parsing(alias):
                inputs[alias] = messages.from_tensor_proto(proto)
        answers = model.run(inputs, name, list(request.output_filter))
    response = messages.predict_pb2.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = number
    response.model_spec.signature_name = name
    for alias, array in answers.items():
        response.outputs[alias].CopyFrom(messages.to_tensor_proto(array))
    return response


@contextlib.contextmanager
def _parsing(alias):
    try:
        yield
    except ValueError as error:
        raise errors.invalid_argument(
            f"tensor parsing error: {alias}"
        ) from error


def _check_size(inputs, limits):
    """Counts elements and texts before any is unpacked or filled up."""
    counts = {"texts": 0, "elements": 0}
    for alias, proto in inputs.items():
        with _parsing(alias):
            count = messages.count_elements(proto)
        is_text = proto.dtype == messages.types_pb2.DT_STRING
        kind = "texts" if is_text else "elements"
        counts[kind] += max(count, 1)  # an empty one takes memory too
        flag = f"max_request_{kind}"
        limit = getattr(limits, flag)
        if counts[kind] > limit:
            raise errors.TooLarge(f"{counts[kind]} {kind}", flag, limit)


def _check_names(request, signature):
    """Checks a request's input and output names against its signature."""

    def braces(names):
        return "{" + ",".join(sorted(names)) + "}"

    sent, wanted = set(request.inputs), set(signature.inputs)
    if len(sent) != len(wanted):
        raise errors.invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({braces(sent)}) != len({braces(wanted)}). "
            f"Sent extra: {braces(sent - wanted)}. "
            f"Missing but required: {braces(wanted - sent)}."
        )
    for alias in sorted(wanted - sent):
        raise errors.invalid_argument(
            f"Signature input alias: {alias}(feed name: "
            f"{signature.inputs[alias].name}) not found in request and no "
            "default value provided. Inputs expected to be in the request "
            f"{braces(sent)}, or default input alias set: "
        )
    seen = set()
    for alias in request.output_filter:
        if alias not in signature.outputs:
            raise errors.invalid_argument(
                f"output tensor alias not found in signature: {alias} Outputs "
                f"expected to be in the set {braces(signature.outputs)}."
            )
        if alias in seen:
            raise errors.invalid_argument(
                f"duplicate output tensor alias: {alias}"
            )
        seen.add(alias)


def inputs(core, spec):
    """Returns `{alias: TensorInfo}` of the signature a `ModelSpec` names.

    After `GetInfoMap` of `model_servers/http_rest_api_handler.cc`.

    Raises:
        StatusError: if there is no such model, version or signature.
    """
    name = spec.signature_name or session.DEFAULT_SIGNATURE
    with core.use(spec) as (_, model):
        if name not in model.signatures:
            raise errors.invalid_argument(
                f'Serving signature name: "{name}" not found in signature def'
            )
        return dict(model.signatures[name].inputs)


def metadata(core, request):
    """Answers a `GetModelMetadataRequest`.

    Raises:
        StatusError: as the model server would.
    """
    _check_spec(request)
    if not request.metadata_field:
        raise errors.invalid_argument(
            "GetModelMetadataRequest must specify at least one metadata_field"
        )
    for field in request.metadata_field:
        if field != _SIGNATURES:
            raise errors.invalid_argument(
                f"Metadata field {field} is not supported"
            )
    response = messages.get_model_metadata_pb2.GetModelMetadataResponse()
    signatures = messages.get_model_metadata_pb2.SignatureDefMap()
    with core.use(request.model_spec) as (number, model):
        for name, signature in model.meta_graph.signature_def.items():
            signatures.signature_def[name].CopyFrom(signature)
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = number
    response.metadata[_SIGNATURES].Pack(signatures)
    return response


def status(core, request):
    """Answers a `GetModelStatusRequest`; it passes over a label.

    Raises:
        StatusError: if there is no such model or version.
    """
    _check_spec(request)
    name = request.model_spec.name
    states = core.states(name)
    missing = f"Could not find any versions of model {name}"
    if request.model_spec.HasField("version"):
        number = request.model_spec.version.value
        states = {n: found for n, found in states.items() if n == number}
        missing = f"Could not find version {number} of model {name}"
    if not states:
        raise session.StatusError(messages.error_codes_pb2.NOT_FOUND, missing)
    response = messages.get_model_status_pb2.GetModelStatusResponse()
    for number, (state, error) in states.items():
        version = response.model_version_status.add(version=number, state=state)
        version.status.error_code = messages.error_codes_pb2.OK
        if error:
            version.status.error_code = error.code
            version.status.error_message = error.message
    return response
