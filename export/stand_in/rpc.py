"""TensorFlow Serving's gRPC services over a `Core`.

After `model_servers/prediction_service_impl.cc`, `model_service_impl.cc` and
`grpc_status_util.cc`.
"""

import concurrent.futures

import grpc

from export import messages, session
from export.stand_in import answers
from export.stand_in.core import Core

_GRPC_STATUS = {code.value[0]: code for code in grpc.StatusCode}
_LONGEST_ERROR = 1024  # more does not fit a header


class _Services(
    messages.prediction_service_pb2_grpc.PredictionServiceServicer,
    messages.model_service_pb2_grpc.ModelServiceServicer,
):
    def __init__(self, core, ident):
        self._core, self._ident = core, ident

    def _answer(self, function, request, context):
        answer = code = message = None
        try:
            answer = function(self._core, request)
        except session.StatusError as error:
            # Not the error itself: its traceback would keep the request.
            code, message = error.code, error.message
        # With the answer: gRPC retries no call whose headers have come.
        context.send_initial_metadata([("x-served-by", self._ident)])
        if code is None:
            return answer
        if len(message) > _LONGEST_ERROR:
            message = message[:_LONGEST_ERROR] + "...TRUNCATED"
        context.abort(_GRPC_STATUS[code], message)

    def Predict(self, request, context):
        return self._answer(answers.predict, request, context)

    def GetModelMetadata(self, request, context):
        return self._answer(answers.metadata, request, context)

    def GetModelStatus(self, request, context):
        return self._answer(answers.status, request, context)


def start(core: Core, address: str, threads: int, ident: str) -> grpc.Server:
    """Starts the services on `host:port`.

    `threads` requests are answered at once; `ident` is sent as the
    `x-served-by` initial metadata.
    """
    executor = concurrent.futures.ThreadPoolExecutor(threads)
    options = [
        ("grpc.max_receive_message_length", core.limits.max_request_bytes),
        # Two servers on one port would share its requests.
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(executor, options=options)
    services = _Services(core, ident)
    messages.prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        services, server
    )
    messages.model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        services, server
    )
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from error
    server.start()
    return server
