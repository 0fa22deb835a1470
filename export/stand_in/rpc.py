"""TensorFlow Serving's gRPC services over a `Manager`.

After `model_servers/prediction_service_impl.cc` and `model_service_impl.cc`.
Classification, regression and the other calls answer UNIMPLEMENTED.
"""

import concurrent.futures

import grpc

from export import messages, session

_OPTIONS = [
    # As the model server: `server.cc` sets no limit on what it receives.
    ("grpc.max_receive_message_length", -1),
    # Two servers on one port would share its requests.
    ("grpc.so_reuseport", 0),
]
_GRPC_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class _Service:
    """What the two services share: errors as statuses, and who answers."""

    def __init__(self, manager, ident):
        self._manager, self._ident = manager, ident

    def _answer(self, function, request, context):
        context.send_initial_metadata([("x-served-by", self._ident)])
        try:
            return function(request)
        except session.StatusError as error:
            context.abort(_GRPC_STATUS[error.code], error.message)


class _PredictionService(
    _Service, messages.prediction_service_pb2_grpc.PredictionServiceServicer
):
    def Predict(self, request, context):
        return self._answer(self._manager.predict, request, context)

    def GetModelMetadata(self, request, context):
        return self._answer(self._manager.metadata, request, context)


class _ModelService(
    _Service, messages.model_service_pb2_grpc.ModelServiceServicer
):
    def GetModelStatus(self, request, context):
        return self._answer(self._manager.status, request, context)


def start(manager, address, threads, ident):
    """Starts the services.

    Args:
        manager: the `Manager` that answers.
        address: str, `host:port`.
        threads: int, the number of requests answered at once.
        ident: str, sent as the `x-served-by` initial metadata.

    Returns:
        The running `grpc.Server`.

    Raises:
        OSError: if the address cannot be bound.
    """
    executor = concurrent.futures.ThreadPoolExecutor(threads)
    server = grpc.server(executor, options=_OPTIONS)
    messages.prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(manager, ident), server
    )
    messages.model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        _ModelService(manager, ident), server
    )
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}: {error}") from error
    server.start()
    return server
