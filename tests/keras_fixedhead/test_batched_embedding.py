"""Texts in batches of similar length: as the padded model embeds them."""

import keras
import numpy as np
import pytest

from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.beir import Collection

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


@pytest.fixture(scope="module")
def encoder(embedder):
    return TextEncoder(embedder, batch_size=5)


def test_embeddings_are_the_models(embedder, encoder, expected):
    done, found = [], []
    for prompt in (None, "query"):
        found += [
            (prompt, encoder(TEXTS, prompt, on_batch=done.append)),
            (prompt, embedder.encode_text(tuple(TEXTS), prompt)),
        ]
    one = embedder.encode_text(TEXTS[2])
    np.testing.assert_allclose(one, expected[None][2:3], atol=1e-5)
    for prompt, rows in found:
        assert np.asarray(rows).dtype == "float32"
        np.testing.assert_allclose(rows, expected[prompt], atol=1e-5)
    assert done == 2 * [5, 5, 5, 2]


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="PyTorch compiles nothing"
)
def test_calls_share_what_is_compiled(embedder, monkeypatch):
    """TensorFlow traces once; JAX compiles the shapes seen here."""
    on_jax = keras.backend.backend() == "jax"
    cls, name = (
        (keras.Model, "predict_on_batch")
        if on_jax
        else (type(embedder), "embed_packed")
    )
    method, shapes = getattr(cls, name), []

    def recorded(self, inputs):
        shapes.append(tuple(inputs["token_ids"].shape))
        return method(self, inputs)

    monkeypatch.setattr(cls, name, recorded)
    encoder = TextEncoder(embedder)
    for count in (1, 7, 17):
        for length in range(1, 14):
            encoder([" ".join("a" * length)] * count)
    if on_jax:
        assert set(shapes) == {(count, 13) for count in (1, 8, 32)}
    else:
        assert shapes == [(None, None)]


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
        lambda: embedder.quantize("int8"),
    ):
        change()
        after = embedder.encode_text(TEXTS)
        assert np.abs(after - before).max() > 1e-4
        before = after
    np.testing.assert_allclose(after, padded(embedder, TEXTS), atol=1e-3)


def test_no_texts(encoder, capfd):
    rows = encoder([])
    assert rows.shape == (0, 11) and rows.dtype == "float32"
    assert capfd.readouterr() == ("", "")


def test_bad_arguments(embedder, make_backbone):
    for text, message in ((["a", None], "index 1: None"), ([b"a"], "b'a'")):
        with pytest.raises(TypeError, match=message):
            embedder.encode_text(text)
    with pytest.raises(ValueError, match=r"\(query\).*prompt='document'"):
        embedder.encode_text("a", prompt="document")
    with pytest.raises(ValueError, match="batch_size=0"):
        embedder.encode_text("a", batch_size=0)
    with pytest.raises(ValueError, match="sequence_length=2"):
        TextEncoder(embedder, 2)(["a"])
    with pytest.raises(ValueError, match="preprocessor=None"):
        type(embedder)(make_backbone()).encode_text("a")


def test_collections_have_the_prompts_of_the_model(encoder, expected):
    collection = Collection(["a", "b"], TEXTS[:2], ["c"], TEXTS[2:3], [{0: 1}])
    documents, queries = encoder.embed_collection(collection, "tiny")
    np.testing.assert_allclose(documents, expected[None][:2], atol=1e-5)
    np.testing.assert_allclose(queries, expected["query"][2:3], atol=1e-5)
