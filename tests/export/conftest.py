"""A tiny real embedder, its export, a stand-in server, and both clients."""

import asyncio
import fcntl
import inspect
import os

import pytest

from export import client, local_server, model_source, publish
from tests.contract import models
from tests.export import fronts, tiny


@pytest.fixture(scope="session")
def embedder():
    return tiny.new_embedder(
        prompts={"query": "query: ", "document": ""},
        special_tokens_in_strings=True,
    )


@pytest.fixture(scope="session")
def preset(embedder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    embedder.save_to_preset(str(folder))
    return folder


@pytest.fixture(scope="session")
def base_path(preset, tmp_path_factory):
    """A folder of versions with version 3 of the tiny embedder.

    The workers of a run share the export of the first one.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / "shared" / "tiny"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "3").exists():
            results, published = publish.export(preset, folder, 3)
            failed = [result for result in results if not result.passed]
            assert not failed
            assert published == folder / "3"
    return folder


@pytest.fixture(scope="session")
def source(base_path):
    return model_source.Source(saved_model=base_path, batch_size=2, threads=1)


@pytest.fixture(scope="session")
def opened(source):
    """The encoder of many tests; to load it takes longer than they do."""
    with source.open() as opened:
        yield opened


@pytest.fixture(scope="session")
def server(base_path):
    with local_server.running("tiny", base_path) as running:
        yield running
    assert running.process.returncode == 0


@pytest.fixture(scope="session")
def half_plus(tmp_path_factory):
    """Versions 1 (`x / 2 + 2`) and 2 (`x / 2 + 3`) of a model of one line."""
    folder = tmp_path_factory.mktemp("half_plus")
    for number, offset in models.HALF_PLUS.items():
        models.write_half_plus(folder / str(number), offset)
    return folder


class InLoop:
    """An `AsyncClient` in a loop of its own, which runs each coroutine."""

    def __init__(self, *args, **kwargs):
        self._runner = asyncio.Runner()
        self._client = self._run(client.connect_async, *args, **kwargs)

    def _run(self, function, *args, **kwargs):
        async def call():
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(call())

    def __getattr__(self, name):
        method = getattr(self._client, name)
        return lambda *args, **kwargs: self._run(method, *args, **kwargs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self._runner.close()


@pytest.fixture(params=["waiting", "async"])
def connect(request):
    """`client.connect`, and `connect_async` asked in the same way."""
    return InLoop if request.param == "async" else client.connect


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return fronts.make_certificates(tmp_path_factory.mktemp("certificates"))
