"""TensorFlow Serving's gRPC services over a `Core`.

After `model_servers/prediction_service_impl.cc`, `model_service_impl.cc` and
`grpc_status_util.cc`.
"""

import concurrent.futures

import grpc

from export import messages, session
from export.stand_in import answers

_GRPC_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_LONGEST_ERROR = 1024  # more does not fit a header


class _Service:
    """What the two services share: errors as statuses, and who answers."""

    def __init__(self, core, ident):
        self._core, self._ident = core, ident

    def _answer(self, function, request, context):
        answer = code = message = None
        try:
            answer = function(self._core, request)
        except session.StatusError as error:
            # Not the error itself: by its traceback it would hold the request.
            code, message = error.code, error.message
        # With the answer: gRPC retries no call whose headers have come.
        context.send_initial_metadata([("x-served-by", self._ident)])
        if code is None:
            return answer
        if len(message) > _LONGEST_ERROR:
            message = message[:_LONGEST_ERROR] + "...TRUNCATED"
        context.abort(_GRPC_STATUS[code], message)


class _PredictionService(
    _Service, messages.prediction_service_pb2_grpc.PredictionServiceServicer
):
    def Predict(self, request, context):
        return self._answer(answers.predict, request, context)

    def GetModelMetadata(self, request, context):
        return self._answer(answers.metadata, request, context)


class _ModelService(
    _Service, messages.model_service_pb2_grpc.ModelServiceServicer
):
    def GetModelStatus(self, request, context):
        return self._answer(answers.status, request, context)


def start(core, address, threads, ident):
    """Starts the services.

    Args:
        core: the `Core` that answers.
        address: str, `host:port`.
        threads: int, the number of requests answered at once.
        ident: str, sent as the `x-served-by` initial metadata.

    Returns:
        The running `grpc.Server`.

    Raises:
        OSError: if the address cannot be bound.
    """
    executor = concurrent.futures.ThreadPoolExecutor(threads)
    options = [
        ("grpc.max_receive_message_length", core.limits.max_request_bytes),
        # Two servers on one port would share its requests.
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(executor, options=options)
    messages.prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(core, ident), server
    )
    messages.model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        _ModelService(core, ident), server
    )
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from error
    server.start()
    return server
