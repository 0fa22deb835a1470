"""Reading a BEIR folder as a collection, and its errors."""

import json

import pytest

from keras_fixedhead import FixedHeadTokenizer, beir

pytestmark = pytest.mark.any_backend

DOCUMENTS = {"d1": "a quick brown fox", "d2": "read a file", "d3": "two dogs"}
QUERIES = {"q1": "brown fox", "q2": "read lines", "q3": "not judged"}
QRELS = [("q2", "d2", 2), ("q1", "d1", 1), ("q2", "d3", 1), ("q1", "d3", 0)]
HEADER = "query-id\tcorpus-id\tscore"


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qrels").mkdir()
    for name, texts in {"corpus": DOCUMENTS, "queries": QUERIES}.items():
        write_lines(
            tmp_path / f"{name}.jsonl",
            (json.dumps({"_id": n, "text": t}) for n, t in texts.items()),
        )
    rows = [HEADER, *("\t".join(map(str, row)) for row in QRELS)]
    write_lines(tmp_path / "qrels" / "test.tsv", rows)
    return tmp_path


def test_reads_a_collection(folder):
    found = beir.read_collection(folder)
    assert found.document_ids == list(DOCUMENTS)
    assert found.documents == list(DOCUMENTS.values())
    assert found.query_ids == ["q2", "q1"]
    assert found.queries == ["read lines", "brown fox"]
    assert found.relevant == [{1: 2, 2: 1}, {0: 1}]


def test_titles_stand_before_texts(folder):
    line = json.dumps({"_id": "t", "title": "Title", "text": "text"})
    write_lines(folder / "corpus.jsonl", [line])
    write_lines(folder / "qrels" / "test.tsv", [HEADER])
    assert beir.read_collection(folder).documents == ["Title\n\ntext"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\u3000\u2028",
        "\x00\x07\x1b",
        "\u200b\xad\ufeff",
        "\ufffd",
        "\u0301",
    ],
)
def test_blank(text):
    assert beir.is_blank(text)
    assert not beir.is_blank(f"{text}.{text}")


@pytest.mark.parametrize("text", ["7", "é", "西", "?", "😀", "\u0903"])
def test_not_blank(text):
    assert not beir.is_blank(text)


def test_blank_is_what_the_tokenizer_removes():
    """Of each block of Unicode; all code points agree, but take long."""
    points = [
        *range(0x3100),
        *range(0xD7A0, 0xD800),
        *range(0xE000, 0x110000, 37),
    ]
    points += [*range(0xFE00, 0x10000), 0x1E2EC, 0xE0041, 0xE0101]
    tokenizer = FixedHeadTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    )
    texts = [chr(point) for point in points]
    wrong = [
        ascii(text)
        for text, ids in zip(texts, tokenizer(texts))
        if beir.is_blank(text) != (len(ids) == 0)
    ]
    assert not wrong


def test_blank_documents_are_left_out(folder):
    texts = {"b1": "\x01", "d1": "a fox", "d2": "a file", "d3": " ", "b2": ""}
    write_lines(
        folder / "corpus.jsonl",
        (json.dumps({"_id": n, "text": t}) for n, t in texts.items()),
    )
    found = beir.read_collection(folder)
    assert found.document_ids == ["d1", "d2"]
    assert found.documents == ["a fox", "a file"]
    assert found.blank_ids == ["b1", "d3", "b2"]
    # d3 is relevant to q2: no row of a ranking is it, and half is missed.
    assert found.relevant == [{1: 2, 3: 1}, {0: 1}]
    assert str(found) == (
        "2 queries, 2 documents (without 3 that are blank: 'b1', 'd3', 'b2')"
    )


def test_blank_queries_are_refused(folder):
    write_lines(
        folder / "queries.jsonl",
        (
            json.dumps({"_id": n, "text": t})
            for n, t in (QUERIES | {"q1": "\ufeff", "q3": ""}).items()
        ),
    )
    with pytest.raises(ValueError, match="the query 'q1' is blank"):
        beir.read_collection(folder)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        (
            "corpus.jsonl",
            ['{"_id": "d1", "text": "x"}', "{"],
            r"corpus\.jsonl:2: ",
        ),
        ("queries.jsonl", ['{"text": "x"}'], r"queries\.jsonl:1: "),
        (
            "corpus.jsonl",
            ['{"_id": "d1", "text": "x"}', '{"_id": "d1", "text": "y"}'],
            r"corpus\.jsonl:2: .*'d1' was on an earlier line",
        ),
        ("corpus.jsonl", [], "corpus.jsonl lacks 'd2'"),
        ("qrels/test.tsv", ["query-id\tcorpus-id", "q1\td1"], r"test\.tsv:2: "),
        ("qrels/test.tsv", [HEADER, "q1\td9\t1"], r"test\.tsv:2: "),
        ("qrels/test.tsv", [HEADER, "q9\td1\t1"], r"test\.tsv:2: "),
    ],
)
def test_malformed_collections(folder, name, lines, message):
    write_lines(folder / name, lines)
    with pytest.raises(ValueError, match=message):
        beir.read_collection(folder)
