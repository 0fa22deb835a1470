"""A public encoder converted, exported, indexed and searched."""

import json

import pytest

from export import cli, publish
from export.search import __main__ as search
from tests import minilm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("minilm")
    preset = minilm.save_preset(folder / "preset")
    _, published = publish.export(preset, folder / "minilm", 1)
    assert published
    return folder / "minilm"


@pytest.mark.parametrize(
    "name, way",
    [*((name, "--saved_model") for name in minilm.NDCG), ("adi", "--serve")],
)
def test_minilm_searches_as_the_original_does(name, way, models, tmp_path):
    folder = minilm.collections()[name]
    words = ["--collection", folder, way, models, "--output", tmp_path]
    assert cli.run(search.main, search.Arguments, list(map(str, words))) == 0
    figures = json.loads((tmp_path / "metrics.json").read_text())
    print(name, way, figures["encoder"])
    assert figures["encoder"]["ndcg@10"] == pytest.approx(
        minilm.NDCG[name], abs=0.002
    )
