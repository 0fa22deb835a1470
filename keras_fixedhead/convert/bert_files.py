"""Files that BERT formats share, read with errors that name the file."""

import json
import pathlib

# Arguments of a `FixedHeadBackbone`, and their names in `bert_config.json`
# and in Hugging Face's `config.json`.
CONFIG_NAMES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}

_KINDS = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
}


def read_json(path, default=None, kind=dict):
    """Reads a JSON file that holds a `kind`, `dict` or `list`.

    Without a `default`, a missing file is an error.
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
    """Reads a value from a JSON object of the file `path`.

    `kind` is its Python type, `float` for any number. `default` stands in for
    a missing value or null.
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


def require_values(record, values, path, advice=""):
    """Refuses fields with other than the supported values."""
    for name, value in values.items():
        if record.get(name) not in (None, value):
            raise ValueError(
                f"{path} has {name}={record[name]!r}, which has no equivalent "
                f"here: it must be {value!r}{advice}"
            )


def read_sizes(config, path, required=()):
    """Reads a BERT's sizes and dropout as `FixedHeadBackbone` arguments.

    `config` is the content of the JSON file `path`, which must also have the
    fields `required`.
    """
    needed = (*CONFIG_NAMES.values(), *required)
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    for name in CONFIG_NAMES.values():
        if type(config[name]) is not int or config[name] < 1:
            raise ValueError(
                f"`{name}` in {path} must be an int of 1 or more. Received: "
                f"{config[name]!r}"
            )
    sizes = {ours: config[theirs] for ours, theirs in CONFIG_NAMES.items()}
    head_size, rest = divmod(sizes["hidden_dim"], sizes["num_heads"])
    if rest:
        raise ValueError(
            f"`hidden_size` in {path} must be a multiple of "
            "`num_attention_heads`, as in BERT. Received: hidden_size="
            f"{sizes['hidden_dim']}, num_attention_heads={sizes['num_heads']}"
        )
    dropout = read_field(config, "hidden_dropout_prob", float, path, 0.1)
    if not 0 <= dropout <= 1:
        raise ValueError(
            f"`hidden_dropout_prob` in {path} must be from 0 to 1. Received: "
            f"{dropout}"
        )
    return {**sizes, "head_size": head_size, "dropout": dropout}


def read_vocabulary(path):
    """Reads the tokens of a `vocab.txt`, one per line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    # Unlike splitlines(), this splits at line feeds only.
    return text.removesuffix("\n").split("\n")
