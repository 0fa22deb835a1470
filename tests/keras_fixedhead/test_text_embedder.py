"""The embedder: pooling against NumPy, prompts, every way to save it."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTextEmbedder, FixedMultiHeadAttention
from keras_fixedhead.text_embedder import pool

TEXTS = ["Attention heads.", "", "a b c d e f g h i j k l m n o p", "中 é"]

# KerasHub's TextEmbedder has a compile() of its own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)


def numpy_pool(x, mask, mode):
    rows = []
    for row, real in zip(x, mask.astype(bool)):
        if mode == "cls":
            rows.append(row[0])
        elif not real.any():
            rows.append(np.zeros(x.shape[-1]))
        else:
            rows.append(
                row[real].mean(0) if mode == "mean" else row[real].max(0)
            )
    return np.stack(rows)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_pooling(mode, inputs):
    x = np.random.default_rng(0).normal(size=(5, 13, 11)).astype("float32")
    mask = inputs["padding_mask"]
    np.testing.assert_allclose(
        pool(ops.convert_to_tensor(x), mask, mode),
        numpy_pool(x, mask, mode),
        atol=1e-6,
    )


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_pooling_of_nothing(mode):
    """An empty batch is as short as its longest text, of length 0."""
    nothing = ops.zeros((0, 0, 11))
    assert pool(nothing, ops.zeros((0, 0)), mode).shape == (0, 11)


@pytest.mark.any_backend
@pytest.mark.any_backend
def test_first_numbers_of_an_embedding(make_embedder, inputs, tmp_path):
    whole = make_embedder(normalize=False)
    cut = FixedHeadTextEmbedder(
        whole.backbone, whole.preprocessor, embedding_dim=5
    )
    expected = ops.convert_to_numpy(whole(inputs))[:, :5]
    real = [0, 1, 3, 4]  # row 2 has no real token, hence length 0
    expected = expected[real]
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    got = ops.convert_to_numpy(cut(inputs))
    assert got.shape == (5, 5)
    np.testing.assert_allclose(got[real], expected, atol=1e-6)
    tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
    packed = ops.convert_to_numpy(cut.embed_packed(tensors))
    np.testing.assert_allclose(packed[real], expected, atol=1e-5)
    cut.save_to_preset(tmp_path)
    again = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    assert again.embedding_dim == 5
    np.testing.assert_allclose(again(inputs), got, atol=1e-6)
    again = FixedHeadTextEmbedder.from_preset(str(tmp_path), embedding_dim=3)
    assert again(inputs).shape == (5, 3)


@pytest.mark.parametrize("size", [0, 12])
def test_embedding_dim_is_within_the_backbone(make_backbone, size):
    with pytest.raises(
        ValueError, match=f"from 1 to .* 11.*embedding_dim={size}"
    ):
        FixedHeadTextEmbedder(make_backbone(), embedding_dim=size)


def test_unknown_argument_is_an_error(make_backbone):
    with pytest.raises(TypeError, match="Embedder has no argument `pool`"):
        FixedHeadTextEmbedder(make_backbone(), pool="mean")


def test_unknown_pooling_is_an_error(make_embedder):
    with pytest.raises(ValueError, match="pooling_mode='sum'"):
        make_embedder(pooling_mode="sum")
    # The first token sees no other.
    with pytest.raises(ValueError, match="causal=True.*pooling_mode='cls'"):
        make_embedder(pooling_mode="cls", causal=True)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_packed_equals_padded(make_embedder, inputs, mode, normalize):
    embedder = make_embedder(pooling_mode=mode, normalize=normalize)
    embeddings = ops.convert_to_numpy(embedder(inputs))
    tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
    packed = ops.convert_to_numpy(embedder.embed_packed(tensors))
    # Row 2 has no real token, hence no first one.
    rows = [0, 1, 3, 4] if mode == "cls" else slice(None)
    np.testing.assert_allclose(packed[rows], embeddings[rows], atol=1e-5)
    if normalize:
        lengths = np.linalg.norm(embeddings[[0, 1, 3, 4]], axis=-1)
        np.testing.assert_allclose(lengths, 1.0, atol=1e-5)


@pytest.mark.parametrize("fixed_size", [False, True])
def test_projections_are_those_of_the_last_block(
    make_embedder, inputs, fixed_size
):
    embedder = make_embedder(head_size=[7, [3, 5, 2]])
    tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
    embeddings, projections = embedder.embed_packed(
        tensors, fixed_size=fixed_size, return_projections=True
    )
    np.testing.assert_array_equal(
        embeddings, embedder.embed_packed(tensors, fixed_size=fixed_size)
    )
    *_, last = embedder.backbone.transformer_layers
    before_last = keras.Model(embedder.backbone.input, last.input[0])
    x = ops.convert_to_numpy(before_last(inputs))
    real = inputs["padding_mask"] == 1
    assert projections.keys() == {"query", "key", "value"}
    for name, projection in projections.items():
        kernel, bias = getattr(last.attention, name).get_weights()
        assert projection.shape == (5, 13, 10)
        np.testing.assert_allclose(
            ops.convert_to_numpy(projection)[real],
            x[real] @ kernel + bias,
            atol=1e-5,
        )


def test_bfloat16_is_pooled_in_float32(make_embedder, inputs):
    embedder = make_embedder(dtype="bfloat16")
    embeddings = embedder(inputs)
    assert keras.backend.standardize_dtype(embeddings.dtype) == "float32"


@pytest.mark.any_backend
def test_encode_text_and_prompts(make_embedder):
    embedder = make_embedder(prompts={"query": "a b "})
    assert embedder.encode_text("head", verbose=0).shape == (1, 11)
    np.testing.assert_allclose(
        embedder.encode_text(TEXTS, prompt="query", verbose=0),
        embedder.encode_text([f"a b {text}" for text in TEXTS], verbose=0),
        atol=1e-6,
    )
    with pytest.raises(ValueError, match=r"\(query\).*prompt='document'"):
        embedder.encode_text("head", prompt="document")


@pytest.mark.any_backend
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graph operations"
)
def test_pad_to_longest(make_embedder):
    preprocessor = make_embedder(prompts={"query": "a b "}).preprocessor
    expected = preprocessor(TEXTS)
    batch = preprocessor.pad_to_longest(TEXTS)
    for name, tensor in batch.items():
        np.testing.assert_array_equal(
            tensor, ops.convert_to_numpy(expected[name])
        )
        assert tensor.dtype == "int32"
    short = preprocessor.pad_to_longest(TEXTS[:2])
    assert short["token_ids"].shape == (2, 6)
    np.testing.assert_array_equal(
        short["padding_mask"], [[1] * 6, [1, 1, 0, 0, 0, 0]]
    )
    prompted = preprocessor.pad_to_longest(TEXTS[:2], prompt="query")
    assert prompted["token_ids"].shape == (2, 8)
    cut = preprocessor.pad_to_longest(TEXTS, sequence_length=5)
    assert cut["token_ids"].shape == (4, 5)
    np.testing.assert_array_equal(cut["token_ids"][:, -1], [3, 0, 3, 0])
    assert preprocessor.pad_to_longest([""])["token_ids"].shape == (1, 2)


FRESH_PROCESS = """
import json, sys
import keras, numpy as np
import keras_fixedhead
folder, texts = sys.argv[1], json.loads(sys.argv[2])
layer = keras.models.load_model(f"{folder}/layer.keras")
np.savez(
    f"{folder}/fresh.npz",
    layer=layer.predict(np.load(f"{folder}/x.npy"), verbose=0),
    longer=layer.layers[-1].head_size,
    keras=keras.models.load_model(
        f"{folder}/embedder.keras", compile=False
    ).encode_text(texts, verbose=0),
    preset=keras_fixedhead.FixedHeadTextEmbedder.from_preset(
        f"{folder}/preset"
    ).encode_text(texts, prompt="query", verbose=0),
)
"""


@pytest.mark.slow
@pytest.mark.any_backend
def test_fresh_process_without_custom_objects(make_embedder, tmp_path):
    embedder = make_embedder(prompts={"query": "a b "}, pooling_mode="max")
    embedder.save(tmp_path / "embedder.keras")
    embedder.save_to_preset(tmp_path / "preset")
    inputs = keras.Input((None, 11))
    attention = FixedMultiHeadAttention(3)
    attention.build((None, 5, 11))
    layer = keras.Model(inputs, attention(inputs))
    layer.save(tmp_path / "layer.keras")
    x = np.random.default_rng(0).normal(size=(2, 7, 11))
    np.save(tmp_path / "x.npy", x)
    subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, tmp_path, json.dumps(TEXTS)],
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    )
    fresh = np.load(tmp_path / "fresh.npz")
    np.testing.assert_allclose(fresh["layer"], layer(x), atol=1e-6)
    assert fresh["longer"] == 5
    np.testing.assert_allclose(
        fresh["keras"], embedder.encode_text(TEXTS, verbose=0), atol=1e-6
    )
    np.testing.assert_allclose(
        fresh["preset"],
        embedder.encode_text(TEXTS, prompt="query", verbose=0),
        atol=1e-6,
    )


def test_preset_keeps_everything(make_embedder, tmp_path):
    embedder = make_embedder(
        prompts={"query": "q: ", "document": ""}, normalize=False
    )
    embedder.save_to_preset(tmp_path)
    again = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    assert again.preprocessor.get_config()["prompts"] == {
        "query": "q: ",
        "document": "",
    }
    assert again.preprocessor.sequence_length == 13
    assert again.normalize is False
    tokenizer = again.preprocessor.tokenizer
    assert tokenizer.lowercase is True
    assert (
        tokenizer.get_vocabulary()
        == embedder.preprocessor.tokenizer.get_vocabulary()
    )


def test_weights_file(make_embedder, inputs, tmp_path):
    embedder, other = make_embedder(), make_embedder()
    embedder.save_weights(tmp_path / "embedder.weights.h5")
    assert abs(ops.convert_to_numpy(embedder(inputs) - other(inputs))).max() > 0
    other.load_weights(tmp_path / "embedder.weights.h5")
    np.testing.assert_allclose(other(inputs), embedder(inputs), atol=1e-6)
