"""What a pair of a REST request and its answer is, and what pairs cite."""

import dataclasses

HANDLER = "model_servers/http_rest_api_handler.cc"
HANDLER_TEST = "model_servers/http_rest_api_handler_test.cc"
EVHTTP = "util/net_http/server/internal/evhttp_request.cc"
EVHTTP_SERVER = "util/net_http/server/internal/evhttp_server.cc"
JSON = "util/json_tensor.cc"
JSON_TEST = "util/json_tensor_test.cc"
CORE = "model_servers/server_core.cc"
MANAGER = "core/basic_manager.cc"
STATUS = "model_servers/get_model_status_impl.cc"
PREDICT = "servables/tensorflow/predict_util.cc"

MODELS = "/v1/models"
HALF = f"{MODELS}/half_plus"
KINDS = f"{MODELS}/kinds:predict"
GZIP = {"Content-Encoding": "gzip"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A request and its answer.

    Attributes:
        source: file of TensorFlow Serving that the pair was read from.
        path: str, with the query if there is one.
        body: the JSON text, or bytes; None for GET.
        answer: the JSON text of a good answer; of another one a pattern that
            is searched for in its `error`.
    """

    source: str
    path: str
    body: str | bytes | None
    answer: str
    status: int = 200
    method: str | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def kinds(signature, values):
    """Returns the body of a request to a signature of the model `kinds`."""
    return f'{{"signature_name": "{signature}", {values}}}'
