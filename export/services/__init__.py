"""What a model answers when it is served, one file per kind of model.

The graph computes on real tokens only. The gate compares its answers with those
of the plain, padded Keras model.
"""

import typing

import keras

import keras_fixedhead
from export.services import (
    causal_lm,
    classifier,
    embedder,
    span_labeler,
    token_classifier,
)
from export.services.service import (
    Service,
    golden_cases,
    least_cosine,
    signatures,
    warmup_requests,
)

__all__ = [
    "SERVICES",
    "Service",
    "golden_cases",
    "least_cosine",
    "of",
    "signatures",
    "warmup_requests",
]

SERVICES = {
    keras_fixedhead.FixedHeadTextEmbedder: embedder.serve,
    keras_fixedhead.FixedHeadBackbone: embedder.serve_backbone,
    keras_fixedhead.FixedHeadTextClassifier: classifier.serve,
    keras_fixedhead.FixedHeadTokenClassifier: token_classifier.serve,
    keras_fixedhead.FixedHeadSpanLabeler: span_labeler.serve,
    keras_fixedhead.FixedHeadCausalLM: causal_lm.serve,
}


def of(
    model: keras.Model, preprocessor: keras.layers.Layer, **options: typing.Any
) -> Service:
    """Returns the `Service` of an instance of one of `SERVICES`.

    The preprocessor is that of its kind, and a
    `FixedHeadTextEmbedderPreprocessor` for a `FixedHeadBackbone`. The options
    are those of the kind's function.
    """
    return SERVICES[type(model)](model, preprocessor, **options)
