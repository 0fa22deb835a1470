"""What a model answers when it is served, one file per kind of model.

A file of this folder serves the models that its function names with `@serves`.
The graph computes real tokens only. An output has an open second dimension only
if that counts tokens or words. An option of a service is a parameter of
`load.load` and a field of `saved_model.Arguments`.
"""

import importlib
import pkgutil
import typing

import keras

from export.services.service import SERVICES as SERVICES
from export.services.service import Service as Service
from export.services.service import golden_cases as golden_cases
from export.services.service import least_cosine as least_cosine
from export.services.service import signatures as signatures
from export.services.service import warmup_requests as warmup_requests

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def of(
    model: keras.Model, preprocessor: keras.layers.Layer, **options: typing.Any
) -> Service:
    """Returns the `Service` of an instance of one of `SERVICES`; the options
    are those of its kind's function."""
    return SERVICES[type(model)](model, preprocessor, **options)
