"""Texts in batches of similar length: as the padded model embeds them."""

import keras
import numpy as np
import pytest

from keras_fixedhead.beir import Collection
from keras_fixedhead.text_encoder import TextEncoder

WORDS = ["attention", "head", "é", "ß", "中", "a,", "b.", "c"]
TEXTS = [" ".join(WORDS[i % 8 :] * (i % 3)) for i in range(17)]


@pytest.fixture(scope="module")
def new_embedder(make_embedder):
    def new():
        keras.utils.set_random_seed(7)
        return make_embedder(prompts={"query": "a b "}, num_layers=1)

    return new


@pytest.fixture(scope="module")
def embedder(new_embedder):
    return new_embedder()


def padded(embedder, texts):
    """What the model computes of whole padded sequences."""
    return embedder.predict(texts, verbose=0)


@pytest.fixture(scope="module")
def expected(embedder):
    """The embeddings of `TEXTS`, by prompt."""
    both = [prefix + text for prefix in ("", "a b ") for text in TEXTS]
    rows = padded(embedder, both)
    return {None: rows[: len(TEXTS)], "query": rows[len(TEXTS) :]}


@pytest.mark.parametrize("prompt", [None, "query"])
def test_embeddings_are_the_models(embedder, expected, prompt):
    done = []
    for rows in (
        TextEncoder(embedder, batch_size=5)(
            TEXTS, prompt, on_batch=done.append
        ),
        embedder.encode_text(TEXTS, prompt),
        embedder.encode_text(tuple(TEXTS), prompt, batch_size=3),
        [embedder.encode_text(text, prompt)[0] for text in TEXTS],
    ):
        assert np.asarray(rows).dtype == "float32"
        np.testing.assert_allclose(rows, expected[prompt], atol=1e-5)
    assert done == [5, 5, 5, 2]


def test_calls_share_what_is_compiled(embedder, monkeypatch):
    shapes = set()
    inputs = TextEncoder._inputs

    def recorded(self, texts):
        batch = inputs(self, texts)
        shapes.add(batch["token_ids"].shape)
        return batch

    monkeypatch.setattr(TextEncoder, "_inputs", recorded)
    graphs = set()
    for count in (1, 7, 17):
        for length in range(1, 14):
            embedder.encode_text([" ".join("a" * length)] * count)
            graphs.add(embedder._encoder._graph)
    assert len(graphs) == 1
    if keras.backend.backend() == "jax":
        assert shapes == {(count, 13) for count in (1, 8, 32)}


def test_sequence_length_cuts(embedder, expected, monkeypatch):
    cut = TextEncoder(embedder, 5)(TEXTS)
    assert np.abs(expected[None] - cut).max() > 1e-3
    monkeypatch.setattr(embedder.preprocessor, "sequence_length", 5)
    np.testing.assert_allclose(cut, padded(embedder, TEXTS), atol=1e-5)


# Keras warns of every layer that has nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.any_backend
def test_a_changed_model_is_compiled_again(new_embedder):
    embedder = new_embedder()
    before = embedder.encode_text(TEXTS)
    for change in (
        lambda: embedder.backbone.token_embedding.embeddings.assign_add(
            np.linspace(0, 3, 67 * 11).reshape(67, 11)
        ),
        lambda: setattr(embedder.preprocessor, "sequence_length", 7),
        lambda: embedder.quantize("int8"),
    ):
        change()
        after = embedder.encode_text(TEXTS)
        assert np.abs(after - before).max() > 1e-4
        before = after
    np.testing.assert_allclose(after, padded(embedder, TEXTS), atol=1e-3)


def test_no_texts(embedder):
    for rows in (TextEncoder(embedder)([]), embedder.encode_text([])):
        assert rows.shape == (0, 11)
        assert rows.dtype == "float32"


def test_one_text_prints_nothing(embedder, capfd):
    embedder.encode_text("head")
    assert capfd.readouterr() == ("", "")


def test_bad_arguments(embedder, make_backbone):
    for text, message in ((["a", None], "index 1: None"), ([b"a"], "b'a'")):
        with pytest.raises(TypeError, match=message):
            embedder.encode_text(text)
    with pytest.raises(ValueError, match="batch_size=0"):
        embedder.encode_text("a", batch_size=0)
    with pytest.raises(ValueError, match="sequence_length=2"):
        TextEncoder(embedder, 2)
    with pytest.raises(ValueError, match="preprocessor=None"):
        type(embedder)(make_backbone()).encode_text("a")


def test_collections_have_the_prompts_of_the_model(embedder, expected):
    collection = Collection(["a", "b"], TEXTS[:2], ["c"], TEXTS[2:3], [{0: 1}])
    documents, queries = TextEncoder(embedder).embed_collection(
        collection, "tiny"
    )
    np.testing.assert_allclose(documents, expected[None][:2], atol=1e-5)
    np.testing.assert_allclose(queries, expected["query"][2:3], atol=1e-5)
