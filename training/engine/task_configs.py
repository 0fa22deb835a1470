"""What configurations of tasks share: options of heads, and named runs."""

import dataclasses
import pathlib

import tyro


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head's dropout, and the tokenizer."""

    head_dropout: float = 0.1
    """Fraction of the head's input dropped in training."""
    vocabulary: pathlib.Path | None = None
    """File with one token per line; required without init."""
    lowercase: bool | None = None
    """Whether the tokenizer lowercases and strips accents. None: as init does,
    else yes."""


def named_run(kind, /, **flags):
    """Makes a run from flags; each goes to the part that has such a field.

    A flag without a value and without a default stays required.
    """
    required = {
        field.name: tyro.MISSING
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING
    }
    parts = {
        field.name: named_run(field.type, **_taken(field.type, flags))
        for field in dataclasses.fields(kind)
        if dataclasses.is_dataclass(field.type)
    }
    return kind(**(required | parts | flags))


def changed(run, /, **flags):
    """Returns a run with other values of some flags."""
    parts = {
        field.name: changed(part, **_taken(part, flags))
        for field in dataclasses.fields(run)
        if dataclasses.is_dataclass(part := getattr(run, field.name))
    }
    return dataclasses.replace(run, **parts, **flags)


def _taken(part, flags):
    """Removes the fields of a dataclass from the flags and returns them."""
    names = [field.name for field in dataclasses.fields(part)]
    return {name: flags.pop(name) for name in names if name in flags}
