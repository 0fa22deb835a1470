"""Tiny models with random weights; all sizes are different primes."""

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead import FixedHeadBackbone, FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIZES = {
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 11,
    "intermediate_dim": 23,
    "head_size": 7,
    "max_sequence_length": 17,
}
SEQUENCE_LENGTH = 13


def new_vocabulary(words=()) -> list[str]:
    """The special tokens, the words, and letters alone and within words."""
    within = (f"##{letter}" for letter in LETTERS)
    return [*SPECIAL_TOKENS, *words, *LETTERS, *within]


def new_backbone(vocabulary, **sizes) -> FixedHeadBackbone:
    """A backbone for the tokens of `vocabulary`; `sizes` replace `SIZES`."""
    known = {"vocabulary_size": len(vocabulary), **SIZES}
    return FixedHeadBackbone(**{**known, **sizes})


def new_bert(vocabulary_size, **sizes):
    """KerasHub's encoder of the same `SIZES`, but for `sizes`."""
    known = {**SIZES, "vocabulary_size": vocabulary_size, **sizes}
    del known["head_size"]
    return keras_hub.models.BertBackbone(**known)


def new_task(
    cls, vocabulary, backbone=None, preprocessor=None, tokenizer=None, **options
):
    """A task; dictionaries hold the arguments of each of its parts."""
    return cls(
        backbone=new_backbone(vocabulary, **(backbone or {})),
        preprocessor=cls.preprocessor_cls(
            FixedHeadTokenizer(vocabulary, **(tokenizer or {})),
            **{"sequence_length": SEQUENCE_LENGTH, **(preprocessor or {})},
        ),
        **options,
    )


def add_noise(model: keras.Model, scale=0.1, positions=1.0, seed=0):
    """Moves all trainable weights; biases and norms start as no-ops.

    Position embeddings move `positions` times as far: a language model needs
    that, or it would repeat its last token.
    """
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = scale * rng.normal(size=variable.shape).astype("float32")
        if "position_embedding" in variable.path:
            noise *= positions
        variable.assign_add(noise)
    return model


def randomize(model: keras.Model, scale=0.3):
    """Replaces all weights; biases of zero would hide errors."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(scale * rng.normal(size=weight.shape))
    return model


def tensors(inputs: dict) -> dict:
    return {name: ops.convert_to_tensor(x) for name, x in inputs.items()}


def as_numpy(outputs):
    """The arrays of tensors, of any structure, in float32 at least."""

    def convert(x):
        dtype = keras.backend.standardize_dtype(x.dtype)
        return ops.convert_to_numpy(
            ops.cast(x, "float32") if "float16" in dtype else x
        )

    return keras.tree.map_structure(convert, outputs)


def real(outputs, inputs):
    """The outputs of real tokens, and of rows that have any."""
    mask = inputs["padding_mask"] == 1

    def choose(x):
        return x[mask if x.shape[:2] == mask.shape else mask.any(1)]

    return keras.tree.map_structure(choose, as_numpy(outputs))


def assert_close(outputs, expected, **tolerance):
    """Compares tensors or arrays of one structure."""

    def check(x, y):
        np.testing.assert_allclose(x, y, **tolerance)

    keras.tree.map_structure(check, as_numpy(outputs), as_numpy(expected))
