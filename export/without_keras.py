"""The library's modules that need no Keras, imported without it.

Importing `keras_fixedhead` imports Keras and its backend, which takes seconds
of processor time that a search or an index has no use for.
"""

import importlib.util
import sys


def defer(name):
    """Lets submodules of a package be imported before the package runs.

    The package's `__init__` runs when a name of it is first used. Nothing
    happens if it was imported before.

    Args:
        name: str, a package that is not inside another.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    package = importlib.util.module_from_spec(spec)

    def __getattr__(attribute):
        if attribute.startswith("__") or importlib.util.find_spec(
            f"{name}.{attribute}"
        ):
            # `from package import module` asks for it before it imports it.
            raise AttributeError(attribute)
        del package.__getattr__
        spec.loader.exec_module(package)
        return getattr(package, attribute)

    package.__getattr__ = __getattr__
    sys.modules[name] = package
