"""Small models and inputs; all sizes are different primes."""

import contextlib

import keras
import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyz"

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
    words = ["attention", "head", "##tion", "é", "ß", "σ", "ς", "中", ",", "."]
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    return [*SPECIAL_TOKENS, *words, *letters]


@pytest.fixture(scope="session")
def make_backbone(vocabulary):
    def make(**arguments):
        return FixedHeadBackbone(
            **{
                "vocabulary_size": len(vocabulary),
                "num_layers": 2,
                "num_heads": 3,
                "hidden_dim": 11,
                "intermediate_dim": 23,
                "head_size": 7,
                "max_sequence_length": 17,
                **arguments,
            }
        )

    return make


@pytest.fixture(scope="session")
def make_embedder(vocabulary, make_backbone):
    def make(prompts=None, pooling_mode="mean", normalize=True, **arguments):
        preprocessor = FixedHeadTextEmbedderPreprocessor(
            FixedHeadTokenizer(vocabulary), sequence_length=13, prompts=prompts
        )
        return FixedHeadTextEmbedder(
            make_backbone(**arguments),
            preprocessor,
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
