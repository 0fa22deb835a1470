"""Small models and inputs; all sizes are different primes."""

import contextlib
import functools

import keras
import numpy as np
import pytest

from keras_fixedhead import FixedHeadCausalLM, FixedHeadTextEmbedder
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
def make_task(vocabulary):
    """Makes a task; see `tiny_models.new_task`."""
    return functools.partial(tiny_models.new_task, vocabulary=vocabulary)


@pytest.fixture(scope="session")
def make_embedder(make_task):
    def make(prompts=None, pooling_mode="mean", normalize=True, **arguments):
        return make_task(
            FixedHeadTextEmbedder,
            backbone=arguments,
            preprocessor={"prompts": prompts},
            pooling_mode=pooling_mode,
            normalize=normalize,
        )

    return make


@pytest.fixture(scope="session")
def make_causal_lm(make_task):
    def make(noise=0.7, **arguments):
        model = make_task(
            FixedHeadCausalLM,
            backbone={"causal": True, "head_size": [5, 7], **arguments},
        )
        # What is likely depends on what came before.
        return tiny_models.add_noise(model, noise, positions=5.0)

    return make


def new_inputs(vocabulary):
    """Rows of 13, 1, 0, 5 and 8 real tokens; one has a hole."""
    rng = np.random.default_rng(0)
    padding_mask = np.arange(13) < np.array([[13], [1], [0], [5], [9]])
    padding_mask[4, 3] = False
    return {
        "token_ids": rng.integers(0, len(vocabulary), (5, 13)),
        "segment_ids": rng.integers(0, 2, (5, 13)),
        "padding_mask": padding_mask.astype("int32"),
    }


@pytest.fixture
def inputs(vocabulary):
    return new_inputs(vocabulary)


@pytest.fixture
def masked_inputs(vocabulary):
    """The inputs, and at most three real tokens of each to predict."""
    positions = [[0, 5, 12], [0, 0, 0], [0, 0, 0], [4, 2, 1], [8, 0, 4]]
    return {**new_inputs(vocabulary), "mask_positions": np.array(positions)}
