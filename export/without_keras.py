"""Imports modules of the library that need no Keras without importing Keras.

Importing `keras_fixedhead` imports Keras and its backend, which takes seconds
that a search or an index need not spend.
"""

import importlib.util
import sys


def defer(name: str) -> None:
    """Makes a top-level package's `__init__` run when a name of it is first
    used, so that its submodules can be imported before."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"The package `{name}` is not installed.")
    loader = spec.loader
    package = importlib.util.module_from_spec(spec)

    def __getattr__(attribute):
        if attribute.startswith("__") or importlib.util.find_spec(
            f"{name}.{attribute}"
        ):
            # `from package import module` looks here before it imports.
            raise AttributeError(attribute)
        del package.__getattr__
        loader.exec_module(package)
        return getattr(package, attribute)

    vars(package)["__getattr__"] = __getattr__
    sys.modules[name] = package
