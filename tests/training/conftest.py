"""The data and the finished run of a test module that has a `CASE`."""

import pytest


@pytest.fixture(scope="module")
def data(request, tmp_path_factory):
    return request.module.CASE.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(request, data, tmp_path_factory):
    return request.module.CASE.train(data, tmp_path_factory.mktemp("run"))
