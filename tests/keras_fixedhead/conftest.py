"""Small models and inputs; all sizes are different primes."""

import contextlib

import keras
import numpy as np
import pytest

from keras_fixedhead import FixedHeadTextEmbedder
from tests import tiny_models

if keras.backend.backend() == "torch":
    import torch

    # PyTorch makes no arrays of tensors that require gradients.
    _array = torch.Tensor.__array__
    torch.Tensor.__array__ = lambda tensor, dtype=None, copy=None: _array(
        tensor.detach(), dtype
    )


@pytest.fixture
def float64():
    """Layers in float64, which JAX computes in only when told to."""
    if keras.backend.backend() == "torch":
        pytest.skip("Keras's matmul and maximum return float32 on PyTorch")
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "jax":
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield


@pytest.fixture(scope="session")
def vocabulary():
    return tiny_models.new_vocabulary(
        ["attention", "head", "##tion", "é", "ß", "σ", "ς", "中", ",", "."]
    )


@pytest.fixture(scope="session")
def make_backbone(vocabulary):
    def make(**arguments):
        return tiny_models.new_backbone(vocabulary, **arguments)

    return make


@pytest.fixture(scope="session")
def make_embedder(vocabulary):
    def make(prompts=None, pooling_mode="mean", normalize=True, **arguments):
        return tiny_models.new_task(
            FixedHeadTextEmbedder,
            vocabulary,
            backbone=arguments,
            preprocessor={"prompts": prompts},
            pooling_mode=pooling_mode,
            normalize=normalize,
        )

    return make


@pytest.fixture
def inputs(vocabulary):
    """Rows of 13, 1, 0, 5 and 8 real tokens; one has a hole."""
    rng = np.random.default_rng(0)
    padding_mask = np.arange(13) < np.array([[13], [1], [0], [5], [9]])
    padding_mask[4, 3] = False
    return {
        "token_ids": rng.integers(0, len(vocabulary), (5, 13)),
        "segment_ids": rng.integers(0, 2, (5, 13)),
        "padding_mask": padding_mask.astype("int32"),
    }
