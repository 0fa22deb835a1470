"""Hugging Face's files of a BERT tokenizer, both ways.

Their tokenizers look for added tokens in a text before splitting it into
words. The tokenizer here does that for BERT's five special tokens only.
"""

import pathlib
from typing import Any

import tokenizers

from keras_fixedhead.convert.bert_files import (
    read_field,
    read_json,
    read_settings,
    read_vocabulary,
    require_values,
)
from keras_fixedhead.files import write_json
from keras_fixedhead.tokenizer import SPECIAL_TOKENS, FixedHeadTokenizer

_VOCABULARY = "vocab.txt"
_FAST = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_MAP = "special_tokens_map.json"
_ADDED = "added_tokens.json"

# BERT's tokenizer in `transformers`, and copies of it.
_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")

# Tokenizers that do what `tokenizer.json` says.
_OF_A_FILE = ("PreTrainedTokenizer", "TokenizersBackend")

_MODEL = {
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}

# The parts of BERT's tokenizer in `tokenizer.json`.
_PARTS = {
    "model": {"type": "WordPiece", **_MODEL},
    "normalizer": {"type": "BertNormalizer", "clean_text": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}

# Hugging Face's fields of BERT's special tokens.
_SPECIAL_TOKEN_FIELDS = dict(
    zip(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
        SPECIAL_TOKENS,
    )
)

_ADDED_LISTS = (
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)


def read_tokenizer(
    folder: pathlib.Path,
    lowercase: bool | None = None,
    special_tokens_in_strings: bool = False,
    truncation_side: str | None = None,
) -> dict[str, Any]:
    """Reads `tokenizer.json`, or `vocab.txt` and `tokenizer_config.json`.

    `lowercase` decides where files disagree or say nothing, and
    `truncation_side="right"` accepts a tokenizer that truncates on the left.
    Returns a dictionary of `vocabulary`, `lowercase` and `tokenize`, each
    `None` if no file says it.
    """
    path, fast_path = folder / _CONFIG, folder / _FAST
    advice = ". Remove it from the file if the model was trained without it"
    config = read_settings(path, advice)
    fast = read_json(fast_path, default={})
    never_split = read_field(config, "never_split", list, path, [])
    if not all(token in SPECIAL_TOKENS for token in never_split):
        require_values(config, {"never_split": []}, path, advice)
    if "AutoTokenizer" in read_field(config, "auto_map", dict, path, {}):
        raise ValueError(
            f"{path} names the tokenizer's own code (auto_map), which may "
            "compute anything. Remove that entry if the tokenizer is BERT's"
        )
    file_counts = _check_class(folder, config)
    _check_sides(folder, config, fast, truncation_side)
    theirs = read_field(config, "do_lower_case", bool, path)
    lowercases, vocabularies = {_CONFIG: theirs}, {}
    if (folder / _VOCABULARY).exists():
        vocabularies[_VOCABULARY] = read_vocabulary(folder / _VOCABULARY)
    if fast_path.exists():
        vocabularies[_FAST] = _read_fast_vocabulary(fast_path, fast)
        lowercases[_FAST] = read_field(
            fast["normalizer"], "lowercase", bool, fast_path, True
        )
        if not file_counts and theirs is None:
            # `transformers` lowercases then, whatever the file says.
            lowercases["`transformers` without a do_lower_case"] = True
    if lowercase is None:
        lowercase = _agreed(
            folder, "lower-casing", lowercases, "Pass `lowercase`"
        )
    _check_words(path, config, "tokenize_chinese_chars", lowercase)
    if fast:
        normalizer = fast["normalizer"]
        _check_words(fast_path, normalizer, "handle_chinese_chars", lowercase)
    vocabulary = _agreed(
        folder, "its vocabulary", vocabularies, "Remove the wrong one"
    )
    _check_added_tokens(folder, vocabulary, special_tokens_in_strings)
    return {
        "vocabulary": vocabulary,
        "lowercase": lowercase,
        "tokenize": _tokenize(
            folder,
            vocabulary,
            lowercase if theirs is None else theirs,
            read_field(config, "split_special_tokens", bool, path, False),
        ),
    }


def write_tokenizer(
    folder: pathlib.Path, tokenizer: FixedHeadTokenizer, sequence_length: int
) -> None:
    """Writes the files of a `FixedHeadTokenizer`."""
    vocabulary = tokenizer.get_vocabulary()
    (folder / _VOCABULARY).write_text(
        "".join(f"{token}\n" for token in vocabulary), encoding="utf-8"
    )
    fast = _fast_tokenizer(vocabulary, tokenizer.lowercase)
    fast.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", tokenizer.end_token_id), ("[CLS]", tokenizer.start_token_id)
    )
    fast.decoder = tokenizers.decoders.WordPiece()
    fast.add_special_tokens(list(SPECIAL_TOKENS))
    (folder / _FAST).write_text(f"{fast.to_str(pretty=True)}\n", "utf-8")
    write_json(folder / _MAP, _SPECIAL_TOKEN_FIELDS)
    write_json(
        folder / _CONFIG,
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "split_special_tokens": not tokenizer.special_tokens_in_strings,
            "model_max_length": sequence_length,
            **_SPECIAL_TOKEN_FIELDS,
        },
    )


def _fast_tokenizer(vocabulary, lowercase):
    fast = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {token: i for i, token in enumerate(vocabulary)}, **_MODEL
        )
    )
    fast.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return fast


def _check_class(folder, config):
    """Whether the named class does all that `tokenizer.json` says."""
    for path, record in (
        (folder / _CONFIG, config),
        (
            folder / "config.json",
            read_json(folder / "config.json", default={}),
        ),
    ):
        named = read_field(record, "tokenizer_class", str, path)
        if named is None:
            continue
        kind = named.removesuffix("Fast")
        if kind in _OF_A_FILE and (folder / _FAST).exists():
            return True
        if kind not in _CLASSES:
            raise ValueError(
                f"{path} names the tokenizer {named}. It must be one of "
                f"{', '.join(_CLASSES)}, or with a {_FAST} one of "
                f"{', '.join(_OF_A_FILE)}"
            )
        return False
    return False


def _check_sides(folder, config, fast, truncation_side):
    """Refuses to truncate or to pad on the left."""
    if truncation_side not in (None, "right"):
        raise ValueError(
            "`truncation_side` must be None or 'right'. Received: "
            f"truncation_side={truncation_side!r}"
        )

    def read_side(name, part):
        path = folder / _CONFIG
        side = read_field(config, name, str, path)
        if side is None:
            path = folder / _FAST
            found = read_field(fast, part, dict, path, {})
            side = read_field(found, "direction", str, path, "right")
        return path, side.lower()

    path, side = read_side("truncation_side", "truncation")
    if side != "right" and truncation_side is None:
        raise ValueError(
            f"{path} truncates long texts on the {side}. Here they are "
            "truncated on the right: pass truncation_side='right' to accept "
            "that"
        )
    path, side = read_side("padding_side", "padding")
    if side != "right":
        raise ValueError(
            f"{path} pads on the {side}, which moves the positions of short "
            "texts in a batch. Here padding is on the right: to accept that, "
            f'set `padding_side` in {folder / _CONFIG} to "right"'
        )


def _check_words(path, record, chinese, lowercase):
    """Refuses accents and Chinese characters to be treated in another way."""
    strip = read_field(record, "strip_accents", bool, path)
    if None not in (strip, lowercase) and strip != lowercase:
        raise ValueError(
            f"{path} has strip_accents={strip} and lower-casing {lowercase}. "
            "The tokenizer here does both or neither"
        )
    if not read_field(record, chinese, bool, path, True):
        raise ValueError(
            f"{path} leaves Chinese characters within words, which the "
            "tokenizer here separates, as BERT does"
        )


def _read_fast_vocabulary(path, fast):
    """Checks that `tokenizer.json` is of BERT's tokenizer."""
    for part, parameters in _PARTS.items():
        found = read_field(fast, part, dict, path, {})
        for name, value in parameters.items():
            received = found.get(name, None if name == "type" else value)
            if received != value:
                raise ValueError(
                    f"{path} is not BERT's tokenizer: its {part} must have "
                    f"{name}={value!r}. Received: {received!r}"
                )
    ids = read_field(fast["model"], "vocab", dict, path, {})
    numbers = {read_field(ids, token, int, path) for token in ids}
    if numbers != set(range(len(ids))):
        raise ValueError(f"{path} does not number its tokens from 0 on")
    return sorted(ids, key=ids.get)


def _tokenize(folder, vocabulary, lowercase, split_special_tokens):
    """Returns Hugging Face's own tokenizer of the folder as a function."""
    if (folder / _FAST).exists():
        tokenizer = _load_fast(folder / _FAST)
    elif vocabulary is None or lowercase is None:
        return None
    else:
        tokenizer = _fast_tokenizer(vocabulary, lowercase)
    # `transformers` adds special tokens that are missing from the file.
    added = tokenizer.get_added_tokens_decoder().values()
    present = {token.content for token in added}
    tokenizer.add_special_tokens(
        [x for x in SPECIAL_TOKENS if x in vocabulary and x not in present]
    )
    tokenizer.encode_special_tokens = split_special_tokens

    def tokenize(texts):
        encodings = tokenizer.encode_batch(
            list(texts), add_special_tokens=False
        )
        return [encoding.ids for encoding in encodings]

    return tokenize


def _load_fast(path):
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # it raises nothing more specific
        raise ValueError(f"{path} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    inner = tokenizer.encode("a b", add_special_tokens=False).ids
    whole = tokenizer.encode("a b")
    start, end = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    if whole.ids != [start, *inner, end] or any(whole.type_ids):
        raise ValueError(
            f"{path} is not BERT's tokenizer: its post_processor must put "
            "[CLS] and [SEP] around a text, all of segment 0. Received: "
            f"{tokenizer.encode('').tokens}, and for 'a b' the ids "
            f"{whole.ids} of the segments {whole.type_ids}"
        )
    return tokenizer


def _agreed(folder, what, values, advice):
    """Returns the value that the files agree on; `None` if none has one."""
    values = {path: x for path, x in values.items() if x is not None}
    first = next(iter(values.values()), None)
    if any(x != first for x in values.values()):
        raise ValueError(
            f"{' and '.join(values)} of {folder} disagree about {what}. "
            f"{advice}"
        )
    return first


def _check_added_tokens(folder, vocabulary, in_strings):
    """Refuses added tokens that the tokenizer here would split.

    A file may add only BERT's five special tokens, with their own strings and
    ids and, if `in_strings` maps them to ids in texts, the usual way to look
    for them.
    """
    for path, name, token, number in _added_tokens(folder):
        flags = token if isinstance(token, dict) else {}
        content = flags.get("content") if flags else token
        usual = _SPECIAL_TOKEN_FIELDS.get(name)
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
        # Other flags say which spaces belong to a token. BERT drops spaces.
        for flag in ("single_word", "normalized"):
            if in_strings and flags.get(flag):
                raise ValueError(
                    f"{path} has {flag}=true for {content}, which has no "
                    "equivalent in `special_tokens_in_strings`. Pass "
                    "special_tokens_in_strings=False"
                )


def _added_tokens(folder):
    """Yields a file, the field, a token, and its id where the file has one."""
    path = folder / _ADDED
    tokens = read_json(path, default={})
    for content in tokens:
        number = read_field(tokens, content, int, path)
        yield path, "added_tokens", content, number
    path = folder / _FAST
    fast = read_json(path, default={})
    for token in read_field(fast, "added_tokens", list, path, []):
        yield path, "added_tokens", token, None
    for path in (folder / _CONFIG, folder / _MAP):
        config = read_json(path, default={})
        name = "added_tokens_decoder"
        for number, token in read_field(config, name, dict, path, {}).items():
            if not number.isdecimal():
                raise ValueError(
                    f"`{name}` in {path} must have ids as keys. "
                    f"Received: {number!r}"
                )
            yield path, name, token, int(number)
        for name in _ADDED_LISTS:
            tokens = config.get(name) or []
            if isinstance(tokens, dict):
                tokens = tokens.values()
            for token in tokens:
                yield path, name, token, None
        for name, token in config.items():
            if name.endswith("_token") and isinstance(token, (str, dict)):
                yield path, name, token, None
