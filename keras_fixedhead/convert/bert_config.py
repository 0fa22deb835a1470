"""What a BERT's configuration says, as arguments of a `FixedHeadBackbone`."""

from keras_fixedhead.convert.json_files import read_field

# Arguments of a `FixedHeadBackbone`, and what BERT's `bert_config.json` and
# Hugging Face's `config.json` call them.
CONFIG_NAMES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}


def read_sizes(config, path):
    """Reads the sizes and the dropout rate of a BERT.

    Args:
        config: dictionary, what the file holds.
        path: the file, for messages.

    Returns:
        A dictionary of arguments of a `FixedHeadBackbone`.

    Raises:
        ValueError: A size is missing, no int of 1 or more, or does not fit
            another.
    """
    missing = [
        theirs for theirs in CONFIG_NAMES.values() if theirs not in config
    ]
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
            "`num_attention_heads`, as BERT's is. Received: hidden_size="
            f"{sizes['hidden_dim']}, num_attention_heads={sizes['num_heads']}"
        )
    dropout = read_field(config, "hidden_dropout_prob", float, path, 0.1)
    if not 0 <= dropout <= 1:
        raise ValueError(
            f"`hidden_dropout_prob` in {path} must be from 0 to 1. Received: "
            f"{dropout}"
        )
    return {**sizes, "head_size": head_size, "dropout": dropout}
