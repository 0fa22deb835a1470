"""Files that are whole or not there, and errors of those that are neither."""

import contextlib
import json
import os
import re
import secrets

# What Keras, KerasHub and `json` raise where a file does not hold a model.
_NOT_A_MODEL = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    UnicodeDecodeError,
    json.JSONDecodeError,
)


@contextlib.contextmanager
def replaced(path):
    """Yields the path of a file to write, which then becomes `path`.

    What `path` held is there until then, and stays if the block raises.

    Args:
        path: `pathlib.Path`.

    Raises:
        OSError: if it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        # On the disk before it has its name, should the machine stop.
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path, values):
    """Writes a JSON file, whole or not at all.

    Args:
        path: `pathlib.Path`.
        values: what `json.dumps` takes; finite numbers alone.

    Raises:
        OSError: if it cannot be written.
        ValueError: if a number is not finite.
    """
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def loading(path, argument):
    """Says in one line what is wrong with a model that Keras cannot load.

    Where a class is not registered, Keras raises a `TypeError` that holds the
    whole configuration. Where weights are no HDF5 file, h5py raises an
    `OSError` that does not name it.

    Args:
        path: the preset folder or `.keras` file that the block loads.
        argument: str, what the user calls it.

    Raises:
        ValueError: in place of what Keras raises.
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
