"""Packages that import a module when something of it is first used."""

import importlib


def public_names(package, **modules):
    """Returns a package's `__getattr__` (see PEP 562) and its `__all__`.

    The commands of a package then need not wait for Keras to print a help.

    Args:
        package: the package's `__name__`.
        **modules: for each module of the package the public names that it
            defines, with spaces between.
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
