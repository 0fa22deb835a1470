"""Atomic writes, and errors for files that hold no model."""

import contextlib
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterator
from typing import Any

# Keras, KerasHub and `json` raise these for files that hold no model.
_NOT_A_MODEL = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    UnicodeDecodeError,
    json.JSONDecodeError,
)


@contextlib.contextmanager
def replaced(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields the path of a file to write, which then replaces `path`.

    If the block raises, `path` stays as it was.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        # The rename must not reach the disk before the content.
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: pathlib.Path, values: Any) -> None:
    """Writes a JSON file atomically; numbers must be finite."""
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def loading(path: str | os.PathLike, argument: str) -> Iterator[None]:
    """Turns errors of Keras while it loads `path` into a short `ValueError`.

    `argument` is what the user calls the preset folder or `.keras` file.
    """
    try:
        yield
    except (*_NOT_A_MODEL, OSError) as error:
        if isinstance(error, OSError) and type(error) is not OSError:
            raise  # such as FileNotFoundError, which says which file
        while isinstance(error.__context__, TypeError):
            error = error.__context__
        reason = re.split(r"\.\s|\n", str(error))[0][:200]
        raise ValueError(
            f"`{argument}` {path} cannot be loaded ({type(error).__name__}: "
            f"{reason}). It must hold a model of keras_fixedhead or KerasHub. "
            "Save it again with `save_to_preset`"
        ) from error
