"""JSON files of other libraries, read with errors that name the file."""

import json
import pathlib

_KINDS = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}


def read_json(path, default=None, kind=dict):
    """Reads a file that holds a JSON object or a list.

    Args:
        path: str or `pathlib.Path`.
        default: what to return where there is no such file; `None` makes
            that an error.
        kind: `dict` or `list`, what the file has to hold.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not JSON, or holds something else.
    """
    path = pathlib.Path(path)
    if default is not None and not path.exists():
        return default
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise ValueError(
            f"{path} must hold {_KINDS[kind]}. Received: {type(value).__name__}"
        )
    return value


def read_field(record, name, kind, path, default=None):
    """One value of an object in a JSON file.

    Args:
        record: dictionary, the object.
        name: str, the key.
        kind: its type: `dict`, `list`, `str`, `bool`, `int`, or `float` for
            any number.
        path: the file, for messages.
        default: what to return where there is no value, or null.

    Raises:
        ValueError: It is of another type.
    """
    value = record.get(name)
    if value is None:
        return default
    kinds = (int, float) if kind is float else kind
    # In Python, True is an int.
    if not isinstance(value, kinds) or (
        isinstance(value, bool) and kind is not bool
    ):
        raise ValueError(
            f"`{name}` in {path} must be {_KINDS[kind]}. Received: {value!r}"
        )
    return value


def write_json(path, value):
    """Writes a JSON file that people can read."""
    path.write_text(
        json.dumps(value, indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
