"""Files that commit 9d074ee wrote, of before the tasks had folders, load.

`stored/` holds what it made of `tests.export.tiny.new_embedder` and, after four
of six updates, of `tests.training.tiny.retrieval`. These files never change: to
read what users have, only new ones are added.
"""

import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_fixedhead
from export.index import index_folder
from tests.training import tiny
from training import finetune

STORED = pathlib.Path(__file__).with_name("stored")
TEXTS = ["the cat sleeps", "Déjà vu, twice", "a"]
FIRST = [-0.4127343, -0.3193258, -0.4174584]  # number of each embedding


@pytest.mark.parametrize(
    "load",
    [
        lambda: keras_fixedhead.FixedHeadTextEmbedder.from_preset(
            str(STORED / "preset")
        ),
        lambda: keras.saving.load_model(
            STORED / "embedder.keras", compile=False
        ),
    ],
)
def test_a_model(load):
    embedder = load()
    embeddings = embedder(embedder.preprocessor(TEXTS))
    np.testing.assert_allclose(embeddings[:, 0], FIRST, atol=1e-6)
    assert embedder.preprocessor.prompts == {"query": "query: ", "document": ""}


def test_an_index():
    index = index_folder.load(STORED / "index")
    embedder = keras_fixedhead.FixedHeadTextEmbedder.from_preset(
        str(STORED / "preset")
    )
    text = "read a file line by line"
    embedding = np.array(embedder(embedder.preprocessor([f"Files {text}"])))
    found = index.search(embedding, 3)
    assert index.documents[found.documents[0, 0]][0] == "b"
    assert found.scores[0, 0] == pytest.approx(1, abs=1e-5)
    assert index.bm25.search(["quick fox"], 1).documents[0, 0] == 0


def test_a_run_goes_on(tmp_path):
    shutil.copytree(STORED / "run", tmp_path / "run")
    data = tiny.write_pairs(tmp_path / "data")
    finetune.train(
        tiny.retrieval(
            data, tmp_path / "run", checkpoint_interval=3, evaluation_interval=3
        )
    )
    last = [r for r in tiny.metrics(tmp_path / "run") if "loss" in r][-1]
    assert last["step"] == 6
    assert last["loss"] == pytest.approx(0.09439, rel=1e-2)
