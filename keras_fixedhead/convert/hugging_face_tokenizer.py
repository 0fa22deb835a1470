"""Hugging Face's files of a BERT tokenizer, both ways."""

import tokenizers

from keras_fixedhead.convert.json_files import (
    read_field,
    read_json,
    write_json,
)
from keras_fixedhead.convert.special_tokens import check_added_tokens
from keras_fixedhead.convert.vocabulary import read_vocabulary
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

_VOCABULARY = "vocab.txt"
_FAST = "tokenizer.json"
_CONFIG = "tokenizer_config.json"

# BERT's tokenizer in `transformers`, and copies of it.
_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")

# Those that do what `tokenizer.json` says.
_OF_A_FILE = ("PreTrainedTokenizer", "TokenizersBackend")

# The parts of BERT's tokenizer, as they have to be.
_PARTS = {
    "model": {"type": "WordPiece"},
    "normalizer": {"type": "BertNormalizer", "clean_text": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}
_MODEL = {
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}


def read_tokenizer(
    folder,
    lowercase=None,
    special_tokens_in_strings=False,
    truncation_side=None,
):
    """Reads `tokenizer.json`, or `vocab.txt` and `tokenizer_config.json`.

    Args:
        folder: `pathlib.Path`.
        lowercase: bool or `None`. What to take where files disagree, or say
            nothing.
        special_tokens_in_strings: bool. Whether the tokenizer to build maps
            special tokens in texts to their ids.
        truncation_side: `"right"` to accept a tokenizer that truncates on the
            left, or `None`.

    Returns:
        A dictionary with `vocabulary`, `lowercase` and `tokenize`, each
        `None` where no file says it.

    Raises:
        ValueError: It is another tokenizer than BERT's, or files disagree.
    """
    config = read_json(folder / _CONFIG, default={})

    def says(name, default=None):
        return {
            _CONFIG: read_field(config, name, bool, folder / _CONFIG, default)
        }

    lowercases = says("do_lower_case")
    accents = says("strip_accents")
    chinese = says("tokenize_chinese_chars", True)
    vocabularies = {}
    if (folder / _VOCABULARY).exists():
        vocabularies[_VOCABULARY] = read_vocabulary(folder / _VOCABULARY)
    _check_config(folder, config)
    file_counts = _check_class(folder, config)
    _check_sides(folder, config, truncation_side)
    if (folder / _FAST).exists():
        fast = _read_fast(folder / _FAST)
        vocabularies[_FAST] = fast["vocabulary"]
        lowercases[_FAST] = fast["lowercase"]
        accents[_FAST] = fast["strip_accents"]
        chinese[_FAST] = fast["handle_chinese_chars"]
        if not file_counts and lowercases[_CONFIG] is None:
            # `transformers` do, whatever the file says.
            lowercases["`transformers` without a do_lower_case"] = True
    if lowercase is None:
        lowercase = _agreed(
            folder, "lower-casing", lowercases, "Pass `lowercase`"
        )
    for path, strip in accents.items():
        if strip is not None and lowercase is not None and strip != lowercase:
            raise ValueError(
                f"{folder / path} has strip_accents={strip} and lower-casing "
                f"{lowercase}. The tokenizer here does both or neither"
            )
    for path, apart in chinese.items():
        if not apart:
            raise ValueError(
                f"{folder / path} leaves Chinese characters within words, "
                "which the tokenizer here sets apart, as BERT does"
            )
    vocabulary = _agreed(
        folder, "its vocabulary", vocabularies, "Remove the wrong one"
    )
    check_added_tokens(folder, vocabulary, special_tokens_in_strings)
    theirs = lowercases[_CONFIG]
    return {
        "vocabulary": vocabulary,
        "lowercase": lowercase,
        "tokenize": _tokenize(
            folder,
            vocabulary,
            lowercase if theirs is None else theirs,
            says("split_special_tokens", False)[_CONFIG],
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
    names = [f"{kind}_token" for kind in ("pad", "unk", "cls", "sep", "mask")]
    special = dict(zip(names, SPECIAL_TOKENS))
    write_json(folder / "special_tokens_map.json", special)
    write_json(
        folder / _CONFIG,
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "split_special_tokens": not tokenizer.special_tokens_in_strings,
            "model_max_length": sequence_length,
            **special,
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


def _check_config(folder, config):
    """Refuses settings of BERT's tokenizer that have no equivalent here."""
    path = folder / _CONFIG
    never_split = read_field(config, "never_split", list, path, [])
    for name, value, fits in (
        (
            "do_basic_tokenize",
            config.get("do_basic_tokenize"),
            read_field(config, "do_basic_tokenize", bool, path, True),
        ),
        ("never_split", never_split, {*never_split} <= {*SPECIAL_TOKENS}),
        (
            "wordpieces_prefix",
            config.get("wordpieces_prefix"),
            read_field(config, "wordpieces_prefix", str, path, "##") == "##",
        ),
        (
            "clean_text",
            config.get("clean_text"),
            read_field(config, "clean_text", bool, path, True),
        ),
    ):
        if not fits:
            raise ValueError(
                f"{path} has {name}={value!r}, of which there is no "
                "equivalent here. Remove it from the file if the model was "
                "trained without it"
            )
    if "AutoTokenizer" in read_field(config, "auto_map", dict, path, {}):
        raise ValueError(
            f"{path} names code of the tokenizer's own (auto_map), which may "
            "compute anything. Remove that where it is BERT's"
        )


def _check_class(folder, config):
    """Whether the class does what `tokenizer.json` says, all of it."""
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
                f'right: set `{name}` in {folder / _CONFIG} to "right" to '
                "convert it so"
            )
        if truncation_side is None:
            raise ValueError(
                f"{path} truncates long texts on the {side.lower()}. Here "
                "they are truncated on the right: pass "
                "truncation_side='right' to convert it so"
            )


def _read_fast(path):
    file = read_json(path)
    for part, parameters in _PARTS.items():
        found = read_field(file, part, dict, path, {})
        for name, value in parameters.items():
            if found.get(name, None if name == "type" else value) != value:
                raise ValueError(
                    f"{path} is not BERT's tokenizer: its {part} has to have "
                    f"{name}={value!r}. Received: {found.get(name)!r}"
                )
    model, normalizer = file["model"], file["normalizer"]
    for name, value in _MODEL.items():
        if model.get(name, value) != value:
            raise ValueError(
                f"{path} is not BERT's tokenizer: its model has to have "
                f"{name}={value!r}. Received: {model[name]!r}"
            )
    ids = read_field(model, "vocab", dict, path, {})
    numbers = {read_field(ids, token, int, path) for token in ids}
    if numbers != set(range(len(ids))):
        raise ValueError(f"{path} does not number its tokens from 0 on")
    vocabulary = sorted(ids, key=ids.get)
    return {
        "vocabulary": vocabulary,
        "lowercase": read_field(normalizer, "lowercase", bool, path, True),
        "strip_accents": read_field(normalizer, "strip_accents", bool, path),
        "handle_chinese_chars": read_field(
            normalizer, "handle_chinese_chars", bool, path, True
        ),
    }


def _tokenize(folder, vocabulary, lowercase, split_special_tokens):
    """What Hugging Face's own tokenizer does, of the folder's files."""
    if (folder / _FAST).exists():
        tokenizer = _load_fast(folder / _FAST)
    elif vocabulary is None or lowercase is None:
        return None
    else:
        tokenizer = _fast_tokenizer(vocabulary, lowercase)
    # `transformers` add those of the five that the file does not.
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
            f"{path} is not BERT's tokenizer: its post_processor has to put "
            "[CLS] and [SEP] around a text, all of segment 0. Received: "
            f"{tokenizer.encode('').tokens}, and for 'a b' the ids "
            f"{whole.ids} of the segments {whole.type_ids}"
        )
    return tokenizer


def _agreed(folder, what, values, advice):
    """What files say that say something."""
    values = {path: x for path, x in values.items() if x is not None}
    first = next(iter(values.values()), None)
    if any(x != first for x in values.values()):
        raise ValueError(
            f"{' and '.join(values)} of {folder} disagree about {what}. "
            f"{advice}"
        )
    return first
