"""Hugging Face's files of a BERT tokenizer, both ways."""

import tokenizers

from keras_fixedhead.convert.json_files import (
    read_field,
    read_json,
    write_json,
)
from keras_fixedhead.convert.vocabulary import read_vocabulary
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

_VOCABULARY = "vocab.txt"
_FAST = "tokenizer.json"
_CONFIG = "tokenizer_config.json"

# What a folder without `tokenizer.json` may say its tokenizer is.
_CLASSES = (
    "BertTokenizer",
    "BertTokenizerFast",
    "DistilBertTokenizer",
    "DistilBertTokenizerFast",
)

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


def read_tokenizer(folder, lowercase=None):
    """Reads `tokenizer.json`, or `vocab.txt` and `tokenizer_config.json`.

    Args:
        folder: `pathlib.Path`.
        lowercase: bool or `None`. What to take where files disagree, or say
            nothing.

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
    if not (folder / _FAST).exists():
        _check_class(folder)
    else:
        fast = _read_fast(folder / _FAST)
        vocabularies[_FAST] = fast["vocabulary"]
        lowercases[_FAST] = fast["lowercase"]
        accents[_FAST] = fast["strip_accents"]
        chinese[_FAST] = fast["handle_chinese_chars"]
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
    return {
        "vocabulary": vocabulary,
        "lowercase": lowercase,
        "tokenize": _tokenize(folder, vocabulary, lowercase),
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


def _check_class(folder):
    for name in (_CONFIG, "config.json"):
        path = folder / name
        kind = read_field(
            read_json(path, default={}), "tokenizer_class", str, path
        )
        if kind is not None and kind not in _CLASSES:
            raise ValueError(
                f"{path} names the tokenizer {kind}. Without a {_FAST} it has "
                f"to be one of {', '.join(_CLASSES)}"
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
    added = [
        str(token.get("content") if isinstance(token, dict) else token)
        for token in read_field(file, "added_tokens", list, path, [])
    ]
    unknown = [token for token in added if token not in SPECIAL_TOKENS]
    if unknown:
        raise ValueError(
            f"{path} adds tokens that are looked for in the text before it "
            f"is split: {', '.join(unknown)}. There is no equivalent here"
        )
    return {
        "vocabulary": vocabulary,
        "lowercase": read_field(normalizer, "lowercase", bool, path, True),
        "strip_accents": read_field(normalizer, "strip_accents", bool, path),
        "handle_chinese_chars": read_field(
            normalizer, "handle_chinese_chars", bool, path, True
        ),
    }


def _tokenize(folder, vocabulary, lowercase):
    """What Hugging Face's own tokenizer does, of the folder's files."""
    if (folder / _FAST).exists():
        tokenizer = _load_fast(folder / _FAST)
    elif vocabulary is None or lowercase is None:
        return None
    else:
        tokenizer = _fast_tokenizer(vocabulary, lowercase)

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
    around = tokenizer.encode("").tokens
    if around != ["[CLS]", "[SEP]"]:
        raise ValueError(
            f"{path} is not BERT's tokenizer: its post_processor has to put "
            f"[CLS] and [SEP] around a text. Received: {around}"
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
