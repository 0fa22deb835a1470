"""Attention heads of a fixed size for Keras 3: see README.md."""

import importlib
import os
import sys

# TensorFlow leaves it off on CPUs without AVX-512 VNNI, where it is faster,
# too. Has no effect once TensorFlow is imported.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

if sys.argv[:1] != ["-m"] or not any(
    word.removeprefix("-m").startswith(f"{__name__}.") for word in sys.orig_argv
):
    from keras_fixedhead.attention import FixedMultiHeadAttention
    from keras_fixedhead.backbone import FixedHeadBackbone
    from keras_fixedhead.causal_lm import (
        FixedHeadCausalLM,
        FixedHeadCausalLMPreprocessor,
    )
    from keras_fixedhead.masked_lm import (
        FixedHeadMaskedLM,
        FixedHeadMaskedLMPreprocessor,
    )
    from keras_fixedhead.span_labeler import (
        FixedHeadSpanLabeler,
        FixedHeadSpanLabelerPreprocessor,
    )
    from keras_fixedhead.text_classifier import (
        FixedHeadTextClassifier,
        FixedHeadTextClassifierPreprocessor,
    )
    from keras_fixedhead.text_embedder import (
        FixedHeadTextEmbedder,
        FixedHeadTextEmbedderPreprocessor,
    )
    from keras_fixedhead.token_classifier import (
        FixedHeadTokenClassifier,
        FixedHeadTokenClassifierPreprocessor,
    )
    from keras_fixedhead.tokenizer import FixedHeadTokenizer
    from keras_fixedhead.transformer_block import FixedHeadTransformerBlock

__version__ = "0.1.0"

__all__ = [
    "FixedHeadBackbone",
    "FixedHeadCausalLM",
    "FixedHeadCausalLMPreprocessor",
    "FixedHeadMaskedLM",
    "FixedHeadMaskedLMPreprocessor",
    "FixedHeadSpanLabeler",
    "FixedHeadSpanLabelerPreprocessor",
    "FixedHeadTextClassifier",
    "FixedHeadTextClassifierPreprocessor",
    "FixedHeadTextEmbedder",
    "FixedHeadTextEmbedderPreprocessor",
    "FixedHeadTokenClassifier",
    "FixedHeadTokenClassifierPreprocessor",
    "FixedHeadTokenizer",
    "FixedHeadTransformerBlock",
    "FixedMultiHeadAttention",
]


def __getattr__(name: str) -> type:
    """Imports the classes when the first one is used; see PEP 562.

    Before `python -m keras_fixedhead.planner`, Python imports this package,
    while `sys.argv` begins with "-m". Its `--help` need not wait for Keras.
    Anyone else gets the classes at once: loading needs them registered.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.reload(sys.modules[__name__]), name)
