"""A public encoder on public collections, beside figures known for it."""

import json

import pytest

from tests import minilm
from training import evaluate

pytestmark = pytest.mark.slow


def test_minilm_ranks_as_it_is_known_to(tmp_path):
    folders = minilm.collections()
    preset = minilm.save_preset(tmp_path / "preset")
    output = tmp_path / "figures.json"
    words = ["--model", preset, "--output", output, "--collection"]
    words = [str(word) for word in (*words, *folders.values())]
    assert evaluate.main(words) == 0
    found = json.loads(output.read_text())
    for name, folder in folders.items():
        assert found[str(folder)]["exact"]["nDCG@10"] == pytest.approx(
            minilm.NDCG[name], abs=0.002
        )
