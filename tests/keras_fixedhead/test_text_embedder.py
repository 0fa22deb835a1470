"""The embedder: pooling against NumPy, lengths, projections."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.text_embedder import pool
from tests import tiny_models

TEXTS = ["Attention heads.", "", "a b c d e f g h i j k l m n o p", "中 é"]


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
def test_first_numbers_of_an_embedding(make_embedder, inputs, tmp_path):
    whole = make_embedder(normalize=False)
    cut = FixedHeadTextEmbedder(
        whole.backbone, whole.preprocessor, embedding_dim=5
    )
    real = inputs["padding_mask"].any(1)
    expected = ops.convert_to_numpy(whole(inputs))[real, :5]
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    got = ops.convert_to_numpy(cut(inputs))
    assert got.shape == (5, 5)
    np.testing.assert_allclose(got[real], expected, atol=1e-6)
    cut.save_to_preset(str(tmp_path))
    again = FixedHeadTextEmbedder.from_preset(str(tmp_path), embedding_dim=3)
    assert again(inputs).shape == (5, 3)


@pytest.mark.any_backend
@pytest.mark.parametrize("size", [0, 12])
def test_embedding_dim_is_within_the_backbone(make_backbone, size):
    with pytest.raises(
        ValueError, match=f"from 1 to .* 11.*embedding_dim={size}"
    ):
        FixedHeadTextEmbedder(make_backbone(), embedding_dim=size)


@pytest.mark.any_backend
def test_unknown_pooling_is_an_error(make_embedder):
    with pytest.raises(ValueError, match="pooling_mode='sum'"):
        make_embedder(pooling_mode="sum")
    # The first token sees no other.
    with pytest.raises(ValueError, match="causal=True.*pooling_mode='cls'"):
        make_embedder(pooling_mode="cls", causal=True)


@pytest.mark.any_backend
@pytest.mark.parametrize("fixed_size", [False, True])
def test_projections_are_those_of_the_last_block(
    make_embedder, inputs, fixed_size
):
    embedder = make_embedder(head_size=[7, [3, 5, 2]])
    tensors = tiny_models.tensors(inputs)
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
