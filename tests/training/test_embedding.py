"""Texts embedded in batches of like lengths: as the model does, in order."""

import numpy as np
import pytest

from keras_fixedhead.beir import Collection
from tests.training import tiny
from training.embedding import TextEncoder

TEXTS = tiny.texts(17)


@pytest.fixture(scope="module")
def embedder():
    return tiny.embedder(prompts={"query": "one two "})


@pytest.mark.parametrize("prompt", [None, "query"])
def test_embeddings_are_the_models(embedder, prompt):
    done = []
    rows = TextEncoder(embedder, batch_size=5)(
        TEXTS, prompt, on_batch=done.append
    )
    assert rows.dtype == "float32"
    assert done == [5, 5, 5, 2]
    expected = embedder.encode_text(TEXTS, prompt=prompt, verbose=0)
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_sequence_length_cuts(embedder):
    whole, cut = (TextEncoder(embedder, length)(TEXTS) for length in (None, 5))
    assert np.abs(whole - cut).max() > 1e-3


def test_no_texts(embedder):
    encode = TextEncoder(embedder)
    assert encode([]).shape == (0, encode.size)


def test_collections_have_the_prompts_of_the_model(embedder):
    collection = Collection(["a", "b"], TEXTS[:2], ["c"], TEXTS[2:3], [{0: 1}])
    documents, queries = TextEncoder(embedder).embed_collection(
        collection, "tiny"
    )
    for rows, texts, prompt in (
        (documents, TEXTS[:2], None),
        (queries, TEXTS[2:3], "query"),
    ):
        expected = embedder.encode_text(texts, prompt=prompt, verbose=0)
        np.testing.assert_allclose(rows, expected, atol=1e-5)
