"""Hugging Face's tokenizers: the same ids, or an error that says why not."""

import pytest

from keras_fixedhead import convert
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.keras_fixedhead.hugging_face import (
    VOCABULARY,
    change_file,
    write_fast_tokenizer,
    write_json,
    write_model,
)

TEXTS = ["Attention heads, a CAFÉ!", "head", "中a b. c", "zzz zyx attentions"]
CONFIG = "tokenizer_config.json"

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.filterwarnings("ignore:The tokenizer of .* maps special"),
]


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


@pytest.mark.parametrize("has_fast", [True, False])
def test_the_usual_special_tokens_may_be_named_anywhere(folder, has_fast):
    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    if has_fast:
        flags = ("single_word", "lstrip", "rstrip", "normalized")
        write_fast_tokenizer(
            folder,
            added_tokens=[
                {
                    "id": i,
                    "content": token,
                    "special": True,
                    **dict.fromkeys(flags, False),
                }
                for token, i in ids.items()
            ],
        )
    write_json(folder / "added_tokens.json", ids)
    mask = {"content": "[MASK]", "lstrip": True, "normalized": False}
    names = {
        "cls_token": "[CLS]",
        "mask_token": mask,
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
    }
    write_json(folder / "special_tokens_map.json", names)
    change_file(
        folder / CONFIG,
        {
            **names,
            "do_basic_tokenize": True,
            "never_split": ["[MASK]"],
            "truncation_side": "right",
            "padding_side": "right",
            "additional_special_tokens": ["[SEP]"],
            "extra_special_tokens": {},
            "added_tokens_decoder": {
                str(i): {"content": token} for token, i in ids.items()
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


@pytest.mark.parametrize("where", ["tokenizer_config", "tokenizer", "both"])
def test_left_truncation_may_be_given_up(folder, where):
    said = {"tokenizer_config": "left", "both": "right"}.get(where)
    change_file(folder / CONFIG, {"truncation_side": said})
    if where != "tokenizer_config":
        write_fast_tokenizer(folder, truncation=LEFT)
    if where == "both":  # then the former counts, as in `transformers`
        convert.read_hugging_face(folder)
        return
    with pytest.raises(
        ValueError, match=f"{where}.json truncates.*truncation_side='right'"
    ):
        convert.read_hugging_face(folder)
    source = convert.read_hugging_face(folder, truncation_side="right")
    assert source.vocabulary == VOCABULARY
    with pytest.raises(ValueError, match="`truncation_side` must be.*'left'"):
        convert.read_hugging_face(folder, truncation_side="left")


@pytest.mark.parametrize("flag", ["single_word", "normalized"])
def test_special_tokens_that_are_looked_for_otherwise(folder, flag):
    token = {"content": "[SEP]", flag: True}
    change_file(folder / CONFIG, {"added_tokens_decoder": {"3": token}})
    convert.read_hugging_face(folder)
    with pytest.raises(ValueError, match=rf"{flag}=true for \[SEP\]"):
        convert.read_hugging_face(folder, special_tokens_in_strings=True)


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_in_texts(folder, special):
    source = convert.read_hugging_face(
        folder, special_tokens_in_strings=special
    )
    found = [list(ids) for ids in source.tokenizer()(["a [SEP]b"])]
    assert found == [[14, 3, 15] if special else [14, 1, 1, 1, 15]]


def content(token):
    return {"content": token}


LATIN = "café\n".encode("latin-1")
WITHOUT_MASK = "\n".join(VOCABULARY).replace("[MASK]\n", "").encode()
LONG = "\n".join([*VOCABULARY, *(f"##{i}" for i in range(99))]).encode()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vocab.txt", None, "vocabulary"),
        ("vocab.txt", LATIN, "vocab.txt is not UTF-8"),
        ("vocab.txt", WITHOUT_MASK, r"lacks \[MASK\]"),
        ("vocab.txt", LONG, "139 tokens, its embedding table 41"),
        (
            "config.json",
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "config.json names the tokenizer BertJapaneseTokenizer",
        ),
        (
            CONFIG,
            {"tokenizer_class": "CharacterTokenizer"},
            "tokenizer_config.json names the tokenizer CharacterTokenizer",
        ),
        (CONFIG, {"do_lower_case": "true"}, "true or false"),
        (CONFIG, {"do_lower_case": None}, "`lowercase`: pass it"),
        (CONFIG, {"strip_accents": False}, "strip_accents=False"),
        (CONFIG, {"tokenize_chinese_chars": False}, "Chinese"),
        (CONFIG, {"do_basic_tokenize": False}, "do_basic_tokenize=False"),
        (CONFIG, {"never_split": ["a"]}, r"never_split=\['a'\]"),
        (CONFIG, {"never_split": [["a"]]}, r"never_split=\[\['a'\]\]"),
        (CONFIG, {"wordpieces_prefix": "_"}, "wordpieces_prefix='_'"),
        (CONFIG, {"clean_text": False}, "clean_text=False"),
        (CONFIG, {"clean_text": "true"}, "clean_text='true'"),
        (
            CONFIG,
            {"auto_map": {"AutoTokenizer": ["a.B", None]}},
            "the tokenizer's own code",
        ),
        (CONFIG, {"padding_side": "left"}, f"{CONFIG} pads on the left"),
        ("added_tokens.json", {"<x>": 41}, "added_tokens.json adds .*'<x>'"),
        ("added_tokens.json", {"a": 14}, "the token 'a'"),
        ("added_tokens.json", {"a": "b"}, "an integer"),
        (
            "added_tokens.json",
            {"[CLS]": 5},
            r"gives \[CLS\] the id 5, which is not its line",
        ),
        (
            CONFIG,
            {"added_tokens_decoder": {"41": content("<x>")}},
            "tokenizer_config.json adds the token '<x>'.*_decoder",
        ),
        (
            CONFIG,
            {"added_tokens_decoder": {"9": content("[SEP]")}},
            r"\[SEP\] the id 9",
        ),
        (
            CONFIG,
            {"added_tokens_decoder": {"x": content("[SEP]")}},
            "ids as keys. Received: 'x'",
        ),
        (
            CONFIG,
            {"additional_special_tokens": ["<x>"]},
            "tokenizer_config.json adds the token '<x>'.*additional",
        ),
        (
            CONFIG,
            {"extra_special_tokens": {"x": "<x>"}},
            "adds the token '<x>'.*extra",
        ),
        (
            "special_tokens_map.json",
            {"additional_special_tokens": [content("<x>")]},
            "special_tokens_map.json adds the token '<x>'",
        ),
        (CONFIG, {"bos_token": "<x>"}, "'<x>'.*bos_token"),
        (
            CONFIG,
            {"cls_token": "[SEP]"},
            r"cls_token='\[SEP\]', which must be '\[CLS\]'",
        ),
        (
            "special_tokens_map.json",
            {"unk_token": "<unk>"},
            "special_tokens_map.json has unk_token='<unk>'",
        ),
    ],
)
def test_files_that_are_wrong(folder, name, change, message):
    change_file(folder / name, change)
    with pytest.raises(ValueError, match=message):
        convert.read_hugging_face(folder).tokenizer()


def processor(cls=2, segment=0):
    return {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": segment}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {
            token: {"id": token, "ids": [i], "tokens": [token]}
            for token, i in (("[CLS]", cls), ("[SEP]", 3))
        },
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "x"}, "`model` in"),
        ({"model": {"type": "BPE"}}, "not BERT's.*'BPE'"),
        ({"model": {"unk_token": "<unk>"}}, "unk_token"),
        ({"model": {"vocab": []}}, "`vocab` in"),
        ({"model": {"vocab": {"[PAD]": "0"}}}, "an integer"),
        ({"model": {"vocab": {"[PAD]": 1}}}, "from 0 on"),
        ({"model": {"vocab": {"[PAD]": 0}}}, "Remove the wrong one"),
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"normalizer": {"clean_text": False}}, "clean_text"),
        ({"normalizer": {"lowercase": False}}, "Pass `lowercase`"),
        ({"normalizer": {"strip_accents": False}}, "strip_accents"),
        ({"normalizer": {"handle_chinese_chars": False}}, "json leaves Chin"),
        (
            {"added_tokens": [content("<x>")]},
            "tokenizer.json adds the token '<x>'",
        ),
        ({"added_tokens": [{}]}, "adds the token"),
        (
            {"padding": {"direction": "Left"}},
            "tokenizer.json pads on the left",
        ),
        ({"post_processor": None}, r"post_processor.*\[\]"),
        ({"post_processor": {"type": "x"}}, "cannot be read"),
        (
            {"post_processor": processor(cls=7)},
            r"post_processor.*for 'a b' the ids \[7, ",
        ),
        (
            {"post_processor": processor(segment=1)},
            r"the segments \[0, 1, 1, 0\]",
        ),
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
    with pytest.raises(ValueError, match="out a do_lower_case.*Pass `lower"):
        convert.read_hugging_face(folder)
