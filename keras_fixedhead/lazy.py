"""Lazy imports of a package's modules."""

import importlib
import typing
from collections.abc import Callable


def public_names(
    package: str, **modules: str
) -> tuple[Callable[[str], typing.Any], list[str]]:
    """Returns a package's `__getattr__` (see PEP 562) and its `__all__`.

    A command's `--help` then need not wait for Keras. `package` is its
    `__name__`; `modules` lists each module's public names, space-separated.
    """
    homes = {
        name: module
        for module, names in modules.items()
        for name in names.split()
    }

    def __getattr__(name):
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        module = importlib.import_module(f"{package}.{homes[name]}")
        return getattr(module, name)

    return __getattr__, sorted(homes)
