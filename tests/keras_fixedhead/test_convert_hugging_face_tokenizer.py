"""Hugging Face's tokenizers: the same ids, or an error that says why not."""

import pytest

from keras_fixedhead import convert
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.keras_fixedhead.hugging_face import (
    TEXTS,
    VOCABULARY,
    change_file,
    write_fast_tokenizer,
    write_json,
    write_model,
)

CONFIG = "tokenizer_config.json"

pytestmark = pytest.mark.any_backend


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=repr)
def test_ends_of_lines_are_no_tokens(folder, end):
    lines = "".join(f"{token}{end}" for token in VOCABULARY)
    (folder / "vocab.txt").write_bytes(lines.encode())
    assert convert.read_hugging_face(folder).vocabulary == VOCABULARY


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizer_gives_the_same_ids(folder, lowercase):
    (folder / "vocab.txt").unlink()
    change_file(folder / CONFIG, {"do_lower_case": lowercase})
    write_fast_tokenizer(folder, normalizer={"lowercase": lowercase})
    source = convert.read_hugging_face(folder)
    assert source.lowercase == lowercase
    theirs = source.tokenize(TEXTS)
    assert len({tuple(ids) for ids in theirs}) == len(TEXTS)
    assert list(map(list, source.tokenizer()(TEXTS))) == theirs


def token(content, **flags):
    """An added token, as files spell it."""
    names = ("single_word", "lstrip", "rstrip", "normalized")
    flags = {**dict.fromkeys(names, False), **flags}
    return {"id": 41, "content": content, "special": True, **flags}


@pytest.mark.parametrize("has_fast", [True, False])
def test_the_usual_special_tokens_may_be_named_anywhere(folder, has_fast):
    ids = {content: i for i, content in enumerate(SPECIAL_TOKENS)}
    if has_fast:
        tokens = [token(content, id=i) for content, i in ids.items()]
        write_fast_tokenizer(folder, added_tokens=tokens)
    write_json(folder / "added_tokens.json", ids)
    names = {"cls_token": "[CLS]", "mask_token": token("[MASK]", lstrip=True)}
    write_json(folder / "special_tokens_map.json", names)
    change_file(
        folder / CONFIG,
        {
            **names,
            "do_basic_tokenize": True,
            "never_split": ["[MASK]"],
            "padding_side": "right",
            "additional_special_tokens": ["[SEP]"],
            "extra_special_tokens": {},
            "added_tokens_decoder": {
                str(i): token(content) for content, i in ids.items()
            },
        },
    )
    source = convert.read_hugging_face(folder)
    assert source.vocabulary == VOCABULARY
    # Theirs are ids within texts.
    assert source.tokenize(["a [SEP]b"]) == [[14, 3, 15]]
    change_file(folder / CONFIG, {"split_special_tokens": True})
    source = convert.read_hugging_face(folder)
    assert source.tokenize(["a [SEP]b"]) == [[14, 1, 1, 1, 15]]


def test_the_reference_is_what_the_source_says(folder):
    # Not what was asked for, which would agree with itself.
    source = convert.read_hugging_face(folder, lowercase=False)
    assert source.differing_texts(source.tokenizer(), TEXTS) == [
        text for text in TEXTS if text != text.lower()
    ]


LEFT = {
    "direction": "Left",
    "max_length": 7,
    "strategy": "LongestFirst",
    "stride": 0,
}


@pytest.mark.parametrize("where", ["tokenizer_config", "tokenizer"])
def test_left_truncation_may_be_given_up(folder, where):
    if where == "tokenizer":
        write_fast_tokenizer(folder, truncation=LEFT)
    else:
        change_file(folder / CONFIG, {"truncation_side": "left"})
    with pytest.raises(ValueError, match="on the left.*truncation_side='right"):
        convert.read_hugging_face(folder)
    source = convert.read_hugging_face(folder, truncation_side="right")
    assert source.vocabulary == VOCABULARY
    # As in `transformers`, this file counts more.
    change_file(folder / CONFIG, {"truncation_side": "right"})
    convert.read_hugging_face(folder)


@pytest.mark.parametrize("flag", ["single_word", "normalized"])
def test_special_tokens_that_are_looked_for_otherwise(folder, flag):
    tokens = {"3": token("[SEP]", **{flag: True})}
    change_file(folder / CONFIG, {"added_tokens_decoder": tokens})
    convert.read_hugging_face(folder)
    with pytest.raises(ValueError, match=rf"\[SEP\] in .* has {flag}=True"):
        convert.read_hugging_face(folder, special_tokens_in_strings=True)


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_in_texts(folder, special):
    source = convert.read_hugging_face(
        folder, special_tokens_in_strings=special
    )
    found = [list(ids) for ids in source.tokenizer()(["a [SEP]b"])]
    assert found == [[14, 3, 15] if special else [14, 1, 1, 1, 15]]


LATIN = "café\n".encode("latin-1")
WITHOUT_MASK = "\n".join(VOCABULARY).replace("[MASK]\n", "").encode()
LONG = "\n".join([*VOCABULARY, *(f"##{i}" for i in range(99))]).encode()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vocab.txt", None, "vocabulary"),
        ("vocab.txt", LATIN, "vocab.txt is not UTF-8"),
        ("vocab.txt", WITHOUT_MASK, r"special token.*\[MASK\]"),
        ("vocab.txt", LONG, "139 tokens, its embedding table 41"),
        (
            "config.json",
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "names the tokenizer_class BertJapaneseTokenizer",
        ),
        (CONFIG, {"do_lower_case": None}, "`lowercase`: pass it"),
        (CONFIG, {"strip_accents": False}, "strip_accents=False"),
        (
            CONFIG,
            {"auto_map": {"AutoTokenizer": ["a.B", None]}},
            "the tokenizer's own code",
        ),
        (CONFIG, {"padding_side": "left"}, "pads on the left"),
        ("added_tokens.json", {"a": 14}, "added_tokens.json adds .*'a'"),
        (
            CONFIG,
            {"added_tokens_decoder": {"41": token("<x>")}},
            "tokenizer_config.json adds the token '<x>'.*_decoder",
        ),
        (
            "special_tokens_map.json",
            {"additional_special_tokens": [token("<x>")]},
            "special_tokens_map.json adds the token '<x>'",
        ),
        (CONFIG, {"cls_token": "[SEP]"}, r"'\[SEP\]' \(`cls_token`\)"),
    ],
)
def test_files_that_are_wrong(folder, name, change, message):
    change_file(folder / name, change)
    with pytest.raises(ValueError, match=message):
        convert.read_hugging_face(folder).tokenizer()


WRONG_ID = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 7]}
WRONG_SEGMENT = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 1}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {
        token: {"id": token, "ids": [i], "tokens": [token]}
        for token, i in (("[CLS]", 2), ("[SEP]", 3))
    },
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"vocab": "../vocab.txt"}}, "tokenizer.json cannot be read"),
        ({"model": {"unk_token": "a"}}, "The model of.*unk_token='a'"),
        (
            {"model": {"vocab": {x: i for i, x in enumerate(VOCABULARY[:9])}}},
            "Remove the wrong one",
        ),
        ({"normalizer": {"lowercase": False}}, "Pass `lowercase`"),
        ({"normalizer": {"strip_accents": False}}, "strip_accents=False"),
        ({"added_tokens": [token("<x>")]}, "tokenizer.json adds the.*'<x>'"),
        ({"post_processor": None}, r"post_processor.*for 'a b' the ids \[14"),
        ({"post_processor": WRONG_ID}, r"post_processor.*ids \[7, "),
        ({"post_processor": WRONG_SEGMENT}, r"the segments \[0, 1, 1, 0\]"),
    ],
)
def test_tokenizer_json_that_is_wrong(folder, change, message):
    write_fast_tokenizer(folder, **change)
    with pytest.raises(ValueError, match=message):
        convert.read_hugging_face(folder)


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", None])
def test_a_config_that_is_silent_about_case(folder, kind):
    """`transformers` then lowercases, unless the file alone counts."""
    settings = {"do_lower_case": None, "tokenizer_class": kind}
    change_file(folder / CONFIG, settings)
    write_fast_tokenizer(folder, normalizer={"lowercase": False})
    if kind:
        assert convert.read_hugging_face(folder).lowercase is False
        return
    with pytest.raises(ValueError, match="do_lower_case=True.*Pass `lower"):
        convert.read_hugging_face(folder)
