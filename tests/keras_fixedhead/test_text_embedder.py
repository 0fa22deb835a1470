"""The embedder: pooling against NumPy, cut embeddings, projections."""

import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.text_embedder import pool


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
@pytest.mark.parametrize(
    "options", [{"embedding_dim": 5}, {"projection_dim": 17}], ids=str
)
def test_first_numbers_and_projections(make_embedder, inputs, options):
    pooled = make_embedder(normalize=False)
    model = FixedHeadTextEmbedder(pooled.backbone, **options)
    kernel = np.eye(11, 5)
    if "projection_dim" in options:
        kernel = np.random.default_rng(0).normal(size=(11, 17))
        model.projection.kernel.assign(kernel)
    real = inputs["padding_mask"].any(1)
    expected = ops.convert_to_numpy(pooled(inputs))[real] @ kernel
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    got = ops.convert_to_numpy(model(inputs))
    assert got.shape == (5, model.embedding_size) == (5, kernel.shape[1])
    np.testing.assert_allclose(got[real], expected, atol=1e-5)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projection_dim": 0}, "`projection_dim` .*projection_dim=0"),
        ({"projection_dim": 3, "embedding_dim": 5}, "from 1 to 3"),
        ({"embedding_dim": 0}, "from 1 to 11.*embedding_dim=0"),
        ({"embedding_dim": 12}, "from 1 to 11.*embedding_dim=12"),
        ({"pooling_mode": "sum"}, "pooling_mode='sum'"),
        # The first token sees no other.
        ({"pooling_mode": "cls"}, "causal=True.*pooling_mode='cls'"),
    ],
)
def test_wrong_arguments(make_backbone, options, message):
    with pytest.raises(ValueError, match=message):
        FixedHeadTextEmbedder(make_backbone(causal=True), **options)
