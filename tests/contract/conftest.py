"""One suite of requests and answers for the stand-in and the model server.

Every pair cites the file of github.com/tensorflow/serving, under
`tensorflow_serving/`, that it was read from (2.20.0).

`pytest tests/contract` asks what `export.serve` starts: the model server where
that is installed, else the stand-in. A server that runs already is asked with
these three, each a command of its own:

    python -m tests.contract.models /tmp/contract --prefix /models
    docker run --rm -p 8500:8500 -p 8501:8501 -v /tmp/contract:/models \
        tensorflow/serving:2.20.0 --model_config_file=/models/models.config \
        --allow_version_labels_for_unavailable_models
    pytest tests/contract --rest_url http://localhost:8501 \
        --grpc_url grpc://localhost:8500

Not run against the model server so far.
"""

import pytest

from export import local_server
from tests.contract import models


def pytest_addoption(parser):
    parser.addoption("--rest_url", help="of a model server that runs already")
    parser.addoption("--grpc_url", help="of a model server that runs already")


@pytest.fixture(scope="session")
def urls(request, tmp_path_factory):
    """The URLs of REST and gRPC of a server of the contract's models."""
    given = [
        request.config.getoption(option, None)
        for option in ("--rest_url", "--grpc_url")
    ]
    if all(given):
        yield given
        return
    if any(given):
        raise pytest.UsageError("Pass both --rest_url and --grpc_url.")
    config = models.write(tmp_path_factory.mktemp("contract"))
    with local_server.started(
        "half_plus",
        *("--model_config_file", str(config)),
        "--allow_version_labels_for_unavailable_models",
    ) as server:
        yield server.rest_url, server.grpc_url
    assert server.process.returncode == 0


@pytest.fixture(scope="session")
def rest_url(urls):
    return urls[0]


@pytest.fixture(scope="session")
def grpc_address(urls):
    return urls[1].removeprefix("grpc://")
