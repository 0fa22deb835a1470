"""BERT's `vocab.txt`."""


def read_vocabulary(path):
    """Reads the tokens of a `vocab.txt`, one a line.

    Args:
        path: `pathlib.Path`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    # Not splitlines(), which splits at more than line feeds.
    return text.removesuffix("\n").split("\n")
