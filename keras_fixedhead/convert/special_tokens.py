"""The tokens that Hugging Face's files add to a vocabulary.

Their tokenizers look for added tokens in a text before splitting it into
words. The tokenizer here does that for BERT's five special tokens only.
"""

from keras_fixedhead.convert.bert_files import read_field, read_json
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

_ADDED = "added_tokens.json"
_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
_FAST = "tokenizer.json"
_LISTS = (
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)

# Hugging Face's fields of BERT's special tokens.
SPECIAL_TOKEN_FIELDS = dict(
    zip(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
        SPECIAL_TOKENS,
    )
)

# The other flags say which spaces belong to a token. BERT drops spaces.
_FLAGS = ("single_word", "normalized")


def check_added_tokens(folder, vocabulary, in_strings):
    """Refuses added tokens that the tokenizer here would split.

    A file may add only BERT's five special tokens, with their own strings and
    ids and, if `in_strings` maps them to ids in texts, the usual way to look
    for them. `vocabulary` lists tokens in the order of ids, or is `None`.
    """
    for path, name, token, number in _added_tokens(folder):
        flags = token if isinstance(token, dict) else {}
        content = flags.get("content") if flags else token
        usual = SPECIAL_TOKEN_FIELDS.get(name)
        if usual is not None and content != usual:
            raise ValueError(
                f"{path} has {name}={content!r}, which must be {usual!r} "
                "here, as in BERT"
            )
        if content not in SPECIAL_TOKENS:
            raise ValueError(
                f"{path} adds the token {content!r} (`{name}`), which its "
                "tokenizer looks for before it splits a text. There is no "
                "equivalent here. Remove it from the file if your texts never "
                "contain it"
            )
        if None not in (vocabulary, number) and (
            vocabulary[number : number + 1] != [content]
        ):
            raise ValueError(
                f"{path} gives {content} the id {number}, which is not its "
                "line in the vocabulary"
            )
        for flag in _FLAGS:
            if in_strings and flags.get(flag):
                raise ValueError(
                    f"{path} has {flag}=true for {content}, which has no "
                    "equivalent in `special_tokens_in_strings`. Pass "
                    "special_tokens_in_strings=False"
                )


def _added_tokens(folder):
    """Yields a file, the field, a token (str or dict), its id or `None`."""
    path = folder / _ADDED
    tokens = read_json(path, default={})
    for content in tokens:
        number = read_field(tokens, content, int, path)
        yield path, "added_tokens", content, number
    path = folder / _FAST
    for token in read_field(
        read_json(path, default={}), "added_tokens", list, path, []
    ):
        yield path, "added_tokens", token, None
    for path in (folder / name for name in _CONFIGS):
        config = read_json(path, default={})
        for number, token in read_field(
            config, "added_tokens_decoder", dict, path, {}
        ).items():
            if not number.isdecimal():
                raise ValueError(
                    f"`added_tokens_decoder` in {path} must have ids as keys. "
                    f"Received: {number!r}"
                )
            yield path, "added_tokens_decoder", token, int(number)
        for name in _LISTS:
            tokens = config.get(name) or []
            if isinstance(tokens, dict):
                tokens = tokens.values()
            for token in tokens:
                yield path, name, token, None
        for name, token in config.items():
            if name.endswith("_token") and isinstance(token, (str, dict)):
                yield path, name, token, None
