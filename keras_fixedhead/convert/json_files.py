"""JSON files of other libraries, read with errors that name the file."""

import json
import pathlib


def read_json(path, default=None):
    """Reads a file that holds a JSON object or a list.

    Args:
        path: str or `pathlib.Path`.
        default: what to return where there is no such file; `None` makes
            that an error.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not JSON.
    """
    path = pathlib.Path(path)
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def write_json(path, value):
    """Writes a JSON file that people can read."""
    path.write_text(
        json.dumps(value, indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
