"""Attention heads of a fixed size for Keras 3: see README.md."""

from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.causal_lm import FixedHeadCausalLM
from keras_fixedhead.causal_lm_preprocessor import FixedHeadCausalLMPreprocessor
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.masked_lm_preprocessor import FixedHeadMaskedLMPreprocessor
from keras_fixedhead.span_labeler import FixedHeadSpanLabeler
from keras_fixedhead.span_labeler_preprocessor import (
    FixedHeadSpanLabelerPreprocessor,
)
from keras_fixedhead.text_classifier import FixedHeadTextClassifier
from keras_fixedhead.text_classifier_preprocessor import (
    FixedHeadTextClassifierPreprocessor,
)
from keras_fixedhead.text_embedder import FixedHeadTextEmbedder
from keras_fixedhead.text_embedder_preprocessor import (
    FixedHeadTextEmbedderPreprocessor,
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
    "FixedHeadTokenizer",
    "FixedHeadTransformerBlock",
    "FixedMultiHeadAttention",
]
