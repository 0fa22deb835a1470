"""What a model answers when it is served, one file per kind of model.

The graph computes on real tokens alone; beside it stands the plain, padded
Keras model, whose answers the gate compares it with.
"""

import keras_fixedhead
from export.services import (
    causal_lm,
    classifier,
    embedder,
    encoder,
    span_labeler,
)
from export.services.golden_cases import golden_cases
from export.services.service import (
    TOKEN_IDS_SIGNATURE,
    Service,
    TextSignature,
    least_cosine,
    signatures,
    warmup_requests,
)

__all__ = [
    "SERVICES",
    "TOKEN_IDS_SIGNATURE",
    "Service",
    "TextSignature",
    "golden_cases",
    "least_cosine",
    "of",
    "signatures",
    "warmup_requests",
]

SERVICES = {
    keras_fixedhead.FixedHeadTextEmbedder: embedder.serve,
    keras_fixedhead.FixedHeadBackbone: encoder.serve,
    keras_fixedhead.FixedHeadTextClassifier: classifier.serve,
    keras_fixedhead.FixedHeadSpanLabeler: span_labeler.serve,
    keras_fixedhead.FixedHeadCausalLM: causal_lm.serve,
}


def of(model, preprocessor, **options):
    """Returns the `Service` of a model.

    Args:
        model: an instance of one of `SERVICES`.
        preprocessor: the preprocessor of its kind; a
            `FixedHeadTextEmbedderPreprocessor` for a `FixedHeadBackbone`.
        **options: `max_new_tokens` for a `FixedHeadCausalLM`.
    """
    return SERVICES[type(model)](model, preprocessor, **options)
