"""TensorFlow Serving's gRPC services over a `Core`.

After `model_servers/prediction_service_impl.cc`, `model_service_impl.cc`,
`get_model_status_impl.cc` and `grpc_status_util.cc`, and
`servables/tensorflow/predict_util.cc` and `get_model_metadata_impl.cc`.
"""

import concurrent.futures

import grpc
from google.protobuf.message import Message

from export import messages, session
from export.stand_in import IDENT
from export.stand_in.core import Core, invalid_argument

_codes = messages.error_codes_pb2
_GRPC_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_LONGEST_ERROR = 1024  # more does not fit a header
_SIGNATURES = "signature_def"


class _Services(
    messages.prediction_service_pb2_grpc.PredictionServiceServicer,
    messages.model_service_pb2_grpc.ModelServiceServicer,
):
    def __init__(self, core):
        self._core = core

    def _answer(self, function, request, context):
        answer = code = message = None
        try:
            answer = function(self._core, request)
        except session.StatusError as error:
            # Not the error itself: its traceback would keep the request.
            code, message = error.code, error.message
        # With the answer: gRPC retries no call whose headers have come.
        context.send_initial_metadata([("x-served-by", IDENT)])
        if code is None:
            return answer
        if len(message) > _LONGEST_ERROR:
            message = message[:_LONGEST_ERROR] + "...TRUNCATED"
        context.abort(_GRPC_STATUS[code], message)

    def Predict(self, request, context):
        return self._answer(predict, request, context)

    def GetModelMetadata(self, request, context):
        return self._answer(metadata, request, context)

    def GetModelStatus(self, request, context):
        return self._answer(status, request, context)


def start(core: Core, address: str, threads: int) -> grpc.Server:
    """Starts the services on `host:port` for `threads` requests at once."""
    options = [
        ("grpc.max_receive_message_length", core.limits.max_request_bytes),
        # Two servers on one port would share its requests.
        ("grpc.so_reuseport", 0),
    ]
    executor = concurrent.futures.ThreadPoolExecutor(threads)
    server = grpc.server(executor, options=options)
    services = _Services(core)
    predictions = messages.prediction_service_pb2_grpc
    predictions.add_PredictionServiceServicer_to_server(services, server)
    models = messages.model_service_pb2_grpc
    models.add_ModelServiceServicer_to_server(services, server)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from error
    server.start()
    return server


def predict(core: Core, request: Message) -> Message:
    """Answers a `PredictRequest` with a `PredictResponse`."""
    _check_spec(request)
    with core.use(request.model_spec) as (number, model):
        name = request.model_spec.signature_name or session.DEFAULT_SIGNATURE
        if name not in model.signatures:
            raise session.StatusError(
                _codes.FAILED_PRECONDITION,
                f'Serving signature key "{name}" not found.',
            )
        signature = model.signatures[name]
        _check_inputs(request.inputs.keys(), signature.inputs)
        _check_outputs(request.output_filter, signature.outputs)
        inputs = {}
        for alias, proto in request.inputs.items():
            try:
                inputs[alias] = messages.from_tensor_proto(proto)
            except ValueError as error:
                message = f"tensor parsing error: {alias}"
                raise invalid_argument(message) from error
        core.limits.check(inputs)
        answers = model.run(inputs, name, list(request.output_filter))
    response = messages.predict_pb2.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = number
    response.model_spec.signature_name = name
    for alias, array in answers.items():
        response.outputs[alias].CopyFrom(messages.to_tensor_proto(array))
    return response


def _check_spec(request):
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")


def _braces(names):
    return "{" + ",".join(sorted(names)) + "}"


def _check_inputs(sent, wanted):
    extra, missing = set(sent) - set(wanted), set(wanted) - set(sent)
    if len(sent) != len(wanted):
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({_braces(sent)}) != len({_braces(wanted)}). "
            f"Sent extra: {_braces(extra)}. "
            f"Missing but required: {_braces(missing)}."
        )
    for alias in sorted(missing):
        raise invalid_argument(
            f"Signature input alias: {alias}(feed name: "
            f"{wanted[alias].name}) not found in request and no "
            "default value provided. Inputs expected to be in the request "
            f"{_braces(sent)}, or default input alias set: "
        )


def _check_outputs(filtered, known):
    for index, alias in enumerate(filtered):
        if alias not in known:
            raise invalid_argument(
                f"output tensor alias not found in signature: {alias} Outputs "
                f"expected to be in the set {_braces(known)}."
            )
        if alias in filtered[:index]:
            raise invalid_argument(f"duplicate output tensor alias: {alias}")


def metadata(core: Core, request: Message) -> Message:
    """Answers a `GetModelMetadataRequest`."""
    _check_spec(request)
    if not request.metadata_field:
        raise invalid_argument(
            "GetModelMetadataRequest must specify at least one metadata_field"
        )
    for field in request.metadata_field:
        if field != _SIGNATURES:
            raise invalid_argument(f"Metadata field {field} is not supported")
    response = messages.get_model_metadata_pb2.GetModelMetadataResponse()
    signatures = messages.get_model_metadata_pb2.SignatureDefMap()
    with core.use(request.model_spec) as (number, model):
        for name, signature in model.meta_graph.signature_def.items():
            signatures.signature_def[name].CopyFrom(signature)
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = number
    response.metadata[_SIGNATURES].Pack(signatures)
    return response


def status(core: Core, request: Message) -> Message:
    """Answers a `GetModelStatusRequest`, whose label is ignored."""
    _check_spec(request)
    name = request.model_spec.name
    states = core.states(name)
    missing = f"Could not find any versions of model {name}"
    if request.model_spec.HasField("version"):
        number = request.model_spec.version.value
        states = {n: found for n, found in states.items() if n == number}
        missing = f"Could not find version {number} of model {name}"
    if not states:
        raise session.StatusError(_codes.NOT_FOUND, missing)
    response = messages.get_model_status_pb2.GetModelStatusResponse()
    for number, (state, error) in states.items():
        version = response.model_version_status.add(version=number, state=state)
        version.status.error_code = _codes.OK
        if error:
            version.status.error_code = error.code
            version.status.error_message = error.message
    return response
