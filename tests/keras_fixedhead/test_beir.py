"""Reading a BEIR folder as a collection, and its errors."""

import json

import pytest

from keras_fixedhead import FixedHeadTokenizer, beir
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

pytestmark = pytest.mark.any_backend

DOCUMENTS = {"d1": "a quick brown fox", "d2": "read a file", "d3": "two dogs"}
QUERIES = {"q1": "brown fox", "q2": "read lines", "q3": "not judged"}
QRELS = [("q2", "d2", 2), ("q1", "d1", 1), ("q2", "d3", 1), ("q1", "d3", 0)]
HEADER = "query-id\tcorpus-id\tscore"
D1 = '{"_id": "d1", "title": "A", "text": "x"}'


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_texts(path, texts):
    records = ({"_id": name, "text": text} for name, text in texts.items())
    write_lines(path, map(json.dumps, records))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qrels").mkdir()
    write_texts(tmp_path / "corpus.jsonl", DOCUMENTS)
    write_texts(tmp_path / "queries.jsonl", QUERIES)
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


def test_blank_is_what_the_tokenizer_removes():
    """Of each block of Unicode; all code points agree, but take long."""
    points = [*range(0x1000), 0x3000, 0xFEFF, 0xFFFD, 0x1E2EC, 0xE0041, 0xE0101]
    points += [*range(0x1000, 0xD800, 37), *range(0xE000, 0x110000, 37)]
    tokenizer = FixedHeadTokenizer([*SPECIAL_TOKENS, "a"])
    texts = ["", " \n\u3000\u2028", *map(chr, points)]
    texts += [f"{text}." for text in texts[:0x100]]
    wrong = [
        ascii(text)
        for text, ids in zip(texts, tokenizer(texts))
        if beir.is_blank(text) != (len(ids) == 0)
    ]
    assert not wrong


def test_titles_stand_before_texts(folder):
    write_lines(folder / "corpus.jsonl", [D1])
    write_lines(folder / "qrels" / "test.tsv", [HEADER])
    assert beir.read_collection(folder).documents == ["A\n\nx"]


def test_blank_documents_are_left_out(folder):
    texts = {"b1": "\x01", "d1": "a fox", "d2": "a file", "d3": " ", "b2": ""}
    write_texts(folder / "corpus.jsonl", texts)
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
    texts = QUERIES | {"q1": "\ufeff", "q3": ""}
    write_texts(folder / "queries.jsonl", texts)
    with pytest.raises(ValueError, match="the query 'q1' is blank"):
        beir.read_collection(folder)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("corpus.jsonl", [D1, "{"], r"corpus\.jsonl:2: .*must be JSON"),
        ("queries.jsonl", ['{"text": "x"}'], r"queries\.jsonl:1: "),
        ("corpus.jsonl", [D1, D1], r"jsonl:2: .*'d1' was on an earlier line"),
        ("corpus.jsonl", [], "corpus.jsonl lacks 'd2'"),
        ("qrels/test.tsv", [HEADER, "q1\td1"], r"test\.tsv:2: "),
        ("qrels/test.tsv", [HEADER, "q1\td9\t1"], r"test\.tsv:2: "),
    ],
)
def test_malformed_collections(folder, name, lines, message):
    write_lines(folder / name, lines)
    with pytest.raises(ValueError, match=message):
        beir.read_collection(folder)
