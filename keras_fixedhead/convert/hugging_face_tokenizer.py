"""Hugging Face's files of a BERT tokenizer, both ways."""

import tokenizers

from keras_fixedhead.convert.bert_files import (
    read_field,
    read_json,
    read_vocabulary,
    require_values,
)
from keras_fixedhead.files import write_json
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

_VOCABULARY = "vocab.txt"
_FAST = "tokenizer.json"
_CONFIG = "tokenizer_config.json"

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

_ADDED = "added_tokens.json"
_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
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


def read_tokenizer(
    folder,
    lowercase=None,
    special_tokens_in_strings=False,
    truncation_side=None,
):
    """Reads `tokenizer.json`, or `vocab.txt` and `tokenizer_config.json`.

    `lowercase` decides where files disagree or say nothing, and
    `truncation_side="right"` accepts a tokenizer that truncates on the left.
    Returns a dictionary of `vocabulary`, `lowercase` and `tokenize`, each
    `None` if no file says it.
    """
    path = folder / _CONFIG
    config = read_json(path, default={})
    said = {
        _CONFIG: {
            name: read_field(config, field, bool, path, default)
            for name, field, default in (
                ("lowercase", "do_lower_case", None),
                ("strip_accents", "strip_accents", None),
                ("chinese", "tokenize_chinese_chars", True),
            )
        }
    }
    vocabularies = {}
    if (folder / _VOCABULARY).exists():
        vocabularies[_VOCABULARY] = read_vocabulary(folder / _VOCABULARY)
    _check_config(path, config)
    file_counts = _check_class(folder, config)
    _check_sides(folder, config, truncation_side)
    if (folder / _FAST).exists():
        vocabularies[_FAST], said[_FAST] = _read_fast(folder / _FAST)
    lowercases = {file: x["lowercase"] for file, x in said.items()}
    theirs = lowercases[_CONFIG]
    if _FAST in said and not file_counts and theirs is None:
        # `transformers` lowercases then, whatever the file says.
        lowercases["`transformers` without a do_lower_case"] = True
    if lowercase is None:
        lowercase = _agreed(
            folder, "lower-casing", lowercases, "Pass `lowercase`"
        )
    for file, settings in said.items():
        strip = settings["strip_accents"]
        if None not in (strip, lowercase) and strip != lowercase:
            raise ValueError(
                f"{folder / file} has strip_accents={strip} and lower-casing "
                f"{lowercase}. The tokenizer here does both or neither"
            )
        if not settings["chinese"]:
            raise ValueError(
                f"{folder / file} leaves Chinese characters within words, "
                "which the tokenizer here separates, as BERT does"
            )
    vocabulary = _agreed(
        folder, "its vocabulary", vocabularies, "Remove the wrong one"
    )
    check_added_tokens(folder, vocabulary, special_tokens_in_strings)
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


def write_tokenizer(folder, tokenizer, sequence_length):
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
    write_json(folder / "special_tokens_map.json", SPECIAL_TOKEN_FIELDS)
    write_json(
        folder / _CONFIG,
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "split_special_tokens": not tokenizer.special_tokens_in_strings,
            "model_max_length": sequence_length,
            **SPECIAL_TOKEN_FIELDS,
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


def _check_config(path, config):
    """Refuses settings of BERT's tokenizer that have no equivalent here."""
    for name, kind in (
        ("do_basic_tokenize", bool),
        ("wordpieces_prefix", str),
        ("clean_text", bool),
    ):
        read_field(config, name, kind, path)
    supported = {
        "do_basic_tokenize": True,
        "wordpieces_prefix": "##",
        "clean_text": True,
    }
    never_split = read_field(config, "never_split", list, path, [])
    if not {*never_split} <= {*SPECIAL_TOKENS}:
        supported["never_split"] = []
    advice = ". Remove it from the file if the model was trained without it"
    require_values(config, supported, path, advice)
    if "AutoTokenizer" in read_field(config, "auto_map", dict, path, {}):
        raise ValueError(
            f"{path} names the tokenizer's own code (auto_map), which may "
            "compute anything. Remove that entry if the tokenizer is BERT's"
        )


def _check_class(folder, config):
    """Whether the named class does all that `tokenizer.json` says."""
    for name, record in (
        (_CONFIG, config),
        ("config.json", read_json(folder / "config.json", default={})),
    ):
        path = folder / name
        kind = read_field(record, "tokenizer_class", str, path)
        if kind is None:
            continue
        fast = (folder / _FAST).exists()
        if fast and kind.removesuffix("Fast") in _OF_A_FILE:
            return True
        if kind.removesuffix("Fast") not in _CLASSES:
            raise ValueError(
                f"{path} names the tokenizer {kind}. It must be one of "
                f"{', '.join(_CLASSES)}, or with a {_FAST} one of "
                f"{', '.join(_OF_A_FILE)}"
            )
        return False
    return False


def _check_sides(folder, config, truncation_side):
    """Refuses to truncate or to pad on the left."""
    if truncation_side not in (None, "right"):
        raise ValueError(
            "`truncation_side` must be None or 'right'. Received: "
            f"truncation_side={truncation_side!r}"
        )
    fast = read_json(folder / _FAST, default={})
    for name, part in (
        ("truncation_side", "truncation"),
        ("padding_side", "padding"),
    ):
        path = folder / _CONFIG
        side = read_field(config, name, str, path)
        if side is None:
            path = folder / _FAST
            found = read_field(fast, part, dict, path, {})
            side = read_field(found, "direction", str, path, "right")
        if side.lower() == "right":
            continue
        if part == "padding":
            raise ValueError(
                f"{path} pads on the {side.lower()}, which moves the "
                "positions of short texts in a batch. Here padding is on the "
                f"right: to accept that, set `{name}` in {folder / _CONFIG} "
                'to "right"'
            )
        if truncation_side is None:
            raise ValueError(
                f"{path} truncates long texts on the {side.lower()}. Here "
                "they are truncated on the right: pass "
                "truncation_side='right' to accept that"
            )


def _read_fast(path):
    file = read_json(path)
    for part, parameters in _PARTS.items():
        found = read_field(file, part, dict, path, {})
        for name, value in parameters.items():
            received = found.get(name, None if name == "type" else value)
            if received != value:
                raise ValueError(
                    f"{path} is not BERT's tokenizer: its {part} must have "
                    f"{name}={value!r}. Received: {received!r}"
                )
    model, normalizer = file["model"], file["normalizer"]
    ids = read_field(model, "vocab", dict, path, {})
    numbers = {read_field(ids, token, int, path) for token in ids}
    if numbers != set(range(len(ids))):
        raise ValueError(f"{path} does not number its tokens from 0 on")
    return sorted(ids, key=ids.get), {
        "lowercase": read_field(normalizer, "lowercase", bool, path, True),
        "strip_accents": read_field(normalizer, "strip_accents", bool, path),
        "chinese": read_field(
            normalizer, "handle_chinese_chars", bool, path, True
        ),
    }


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
    tokenizer.add_special_tokens(
        [
            token
            for token in SPECIAL_TOKENS
            if token in vocabulary and token not in {x.content for x in added}
        ]
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
    ids = [tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]")]
    if whole.ids != [ids[0], *inner, ids[1]] or any(whole.type_ids):
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
