"""Exports of tiny models, asked in this process or through a server."""

import contextlib
import copy

import numpy as np

from export import checks, client, local_server, publish, session
from export.files import digests, golden


def strings(texts):
    return np.array([text.encode() for text in texts], object)


def export(model, folder, **options):
    """Exports a model and gives the path of the version."""
    model.save_to_preset(str(folder / "preset"))
    results, published = publish.export(
        folder / "preset", folder / "served", **options
    )
    assert published, [result for result in results if not result.passed]
    return published


@contextlib.contextmanager
def in_process(folder):
    """Gives a function of texts and a signature to C++'s answers."""
    loaded = session.SavedModelSession(folder)

    def ask(inputs, signature="serving_default"):
        arrays = {
            name: strings(x) if isinstance(x, list) else x
            for name, x in inputs.items()
        }
        return loaded.run(arrays, signature)

    yield ask
    loaded.close()


@contextlib.contextmanager
def by_server(folder, protocol):
    """Gives the same function of a server's answers."""
    with (
        local_server.running("tiny", folder.parent) as server,
        client.connect(getattr(server, protocol), "tiny") as connection,
    ):
        yield connection.predict


def compare_with_others(exported, signature, output, change):
    """Compares an `Exported`, by its open session, with golden answers of which
    one output is changed; returns what `checks.run` does."""
    assert exported.session
    other = copy.copy(exported)
    other.golden = golden.load(exported.folder)
    outputs = other.golden.cases[signature].outputs
    outputs[output] = change(outputs[output])
    other.card = {
        **exported.card,
        "golden_sha256": digests.of_cases(other.golden.cases),
    }
    return checks.run("golden answers", other)
