"""Hugging Face's files of a BERT tokenizer, both ways.

Their tokenizers look for added tokens in a text before splitting it into
words. The tokenizer here does that for BERT's five special tokens only.
"""

import functools
import json
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

# BERT's tokenizer, as the library `tokenizers` writes its parts.
_PARTS = {
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}

# Hugging Face's fields of BERT's special tokens.
_SPECIAL_TOKEN_FIELDS = dict(
    zip(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
        SPECIAL_TOKENS,
    )
)

_TOKEN_LISTS = (
    "added_tokens",
    "added_tokens_decoder",
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
    Returns `vocabulary`, `lowercase` and `tokenize` of a `BertSource`.
    """
    path, fast_path = folder / _CONFIG, folder / _FAST
    config = _read_config(path)
    fast = _load_fast(fast_path)
    file_counts = _check_class(folder, config)
    _check_sides(folder, config, fast, truncation_side)
    _check_added_tokens(folder, special_tokens_in_strings)
    words = folder / _VOCABULARY
    vocabulary = read_vocabulary(words) if words.exists() else None
    lowercases = read_field(config, "do_lower_case", bool, path)
    accents = [(path, config)]
    if fast is not None:
        in_file, normalizer = _check_parts(fast_path, fast)
        if vocabulary is not None and vocabulary != in_file:
            raise ValueError(
                f"{_VOCABULARY} and {_FAST} of {folder} hold different "
                "vocabularies. Remove the wrong one"
            )
        vocabulary = in_file
        accents.append((fast_path, normalizer))
        if lowercases is None:
            # `transformers` lowercases then, unless the file alone counts.
            lowercases = normalizer["lowercase"] or not file_counts
        if lowercase is None and lowercases != normalizer["lowercase"]:
            raise ValueError(
                f"{fast_path} has lowercase={normalizer['lowercase']}, but "
                f"`transformers` takes the do_lower_case={lowercases} of "
                f"{_CONFIG}, or its default. Pass `lowercase`"
            )
    if lowercase is None:
        lowercase = lowercases
    if lowercase is not None:
        for file, record in accents:
            require_values(record, {"strip_accents": lowercase}, file)
        if fast is None and {*SPECIAL_TOKENS} <= {*(vocabulary or ())}:
            fast = _fast_tokenizer(
                vocabulary, lowercase if lowercases is None else lowercases
            )
    tokenize = None
    if fast is not None:
        split = read_field(config, "split_special_tokens", bool, path, False)
        tokenize = _tokenize(fast, vocabulary, split)
    return {
        "vocabulary": vocabulary,
        "lowercase": lowercase,
        "tokenize": tokenize,
    }


def write_tokenizer(
    folder: pathlib.Path, tokenizer: FixedHeadTokenizer, sequence_length: int
) -> None:
    vocabulary = tokenizer.get_vocabulary()
    (folder / _VOCABULARY).write_text(
        "".join(f"{token}\n" for token in vocabulary), encoding="utf-8"
    )
    fast = _fast_tokenizer(vocabulary, tokenizer.lowercase)
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
    ids = {token: i for i, token in enumerate(vocabulary)}
    fast = tokenizers.BertWordPieceTokenizer(ids, lowercase=lowercase)
    # This class lacks `encode_special_tokens`, and the general one has it.
    return tokenizers.Tokenizer.from_str(fast.to_str())


def _tokenize(fast, vocabulary, split_special_tokens):
    # `transformers` adds special tokens that are missing from the file.
    added = fast.get_added_tokens_decoder().values()
    present = {token.content for token in added}
    fast.add_special_tokens(
        [x for x in SPECIAL_TOKENS if x in vocabulary and x not in present]
    )
    fast.encode_special_tokens = split_special_tokens
    encode = functools.partial(fast.encode_batch, add_special_tokens=False)
    return lambda texts: [encoding.ids for encoding in encode(list(texts))]


def _read_config(path):
    advice = ". Remove it from the file if the model was trained without it"
    config = read_settings(path, advice)
    never_split = read_field(config, "never_split", list, path, [])
    if not all(token in SPECIAL_TOKENS for token in never_split):
        require_values(config, {"never_split": []}, path, advice)
    if "AutoTokenizer" in read_field(config, "auto_map", dict, path, {}):
        raise ValueError(
            f"{path} names the tokenizer's own code (auto_map), which may "
            "compute anything. Remove that entry if the tokenizer is BERT's"
        )
    return config


def _load_fast(path):
    if not path.exists():
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # it raises nothing more specific
        raise ValueError(f"{path} cannot be read: {error}") from error


def _check_parts(path, fast):
    """Refuses a `tokenizer.json` that is not of BERT's tokenizer.

    Returns the vocabulary and the normalizer's settings.
    """
    parts = json.loads(fast.to_str())
    for part, values in _PARTS.items():
        found = parts[part] or {"type": "none"}
        require_values(found, values, f"The {part} of {path}")
    ids = fast.get_vocab(with_added_tokens=False)
    vocabulary = sorted(ids, key=ids.get)
    if [ids[token] for token in vocabulary] != [*range(len(ids))]:
        raise ValueError(f"{path} does not number its tokens from 0 on")
    fast.no_truncation()
    fast.no_padding()
    inner = fast.encode("a b", add_special_tokens=False).ids
    whole = fast.encode("a b")
    if whole.ids != [ids.get("[CLS]"), *inner, ids.get("[SEP]")] or any(
        whole.type_ids
    ):
        raise ValueError(
            f"The post_processor of {path} must put [CLS] and [SEP] around a "
            f"text. Received: for 'a b' the ids {whole.ids}, the segments "
            f"{whole.type_ids}"
        )
    return vocabulary, parts["normalizer"]


def _check_class(folder, config):
    """Whether the named class does all that `tokenizer.json` says."""
    model = read_json(folder / "config.json", default={})
    named = config.get("tokenizer_class") or model.get("tokenizer_class")
    kind = str(named or _CLASSES[0]).removesuffix("Fast")
    of_a_file = _OF_A_FILE if (folder / _FAST).exists() else ()
    if kind not in _CLASSES + of_a_file:
        raise ValueError(
            f"{folder} names the tokenizer_class {named}. It must be one of "
            f"{_CLASSES}, or with a {_FAST} one of {_OF_A_FILE}"
        )
    return kind in of_a_file


def _check_sides(folder, config, fast, truncation_side):
    parts = (None, None) if fast is None else (fast.truncation, fast.padding)
    truncation, padding = (
        config.get(name) or (part or {}).get("direction", "right")
        for name, part in zip(("truncation_side", "padding_side"), parts)
    )
    if truncation != "right" and truncation_side != "right":
        raise ValueError(
            f"The tokenizer of {folder} truncates long texts on the "
            f"{truncation}. Here they are truncated on the right: pass "
            "truncation_side='right' to accept that"
        )
    if padding != "right":
        raise ValueError(
            f"The tokenizer of {folder} pads on the {padding}. Here padding is "
            f'on the right: set `padding_side` in {_CONFIG} to "right"'
        )


def _check_added_tokens(folder, in_strings):
    """Refuses added tokens that the tokenizer here would split."""
    for path, field, token in _added_tokens(folder):
        flags = token if isinstance(token, dict) else {"content": token}
        content = flags.get("content")
        usual = _SPECIAL_TOKEN_FIELDS.get(field, content)
        if content not in SPECIAL_TOKENS or content != usual:
            raise ValueError(
                f"{path} adds the token {content!r} (`{field}`); only BERT's "
                f"{', '.join(SPECIAL_TOKENS)} have an equivalent here. Remove "
                "it from the file if your texts never contain it"
            )
        # Other flags say which spaces belong to a token. BERT drops spaces.
        if in_strings:
            usual = {"single_word": False, "normalized": False}
            require_values(flags, usual, f"{content} in {path}")


def _added_tokens(folder):
    """Yields a file, the field and a token, a string or its flags."""
    for name in (_ADDED, _FAST, _CONFIG, _MAP):
        record = read_json(folder / name, default={})
        if name == _ADDED:
            record = {"added_tokens": [*record]}
        for field, value in record.items():
            if field.endswith("_token") and isinstance(value, (str, dict)):
                yield folder / name, field, value
            elif field in _TOKEN_LISTS:
                tokens = value.values() if isinstance(value, dict) else value
                for token in tokens or ():
                    yield folder / name, field, token
