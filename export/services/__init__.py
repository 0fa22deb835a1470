"""What a model answers when it is served, one file per kind of model.

A file of this folder serves the models that its function names with `@serves`.
The graph computes real tokens only. The gate compares its answers with those of
the plain, padded Keras model. An output has an open second dimension only if
that counts tokens or words. An option of a service is a parameter of
`load.load` and a field of `saved_model.Arguments`.
"""

import importlib
import pkgutil
import typing

import keras

from export.services.service import (
    SERVICES,
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

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def of(
    model: keras.Model, preprocessor: keras.layers.Layer, **options: typing.Any
) -> Service:
    """Returns the `Service` of an instance of one of `SERVICES`.

    The preprocessor is that of its kind, and a
    `FixedHeadTextEmbedderPreprocessor` for a `FixedHeadBackbone`. The options
    are those of the kind's function.
    """
    return SERVICES[type(model)](model, preprocessor, **options)
