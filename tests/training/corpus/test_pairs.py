"""Files of pairs: round trips, and errors that name the file and the line."""

import json

import pytest

from keras_fixedhead.beir import write_beir
from training.corpus.pairs import (
    Pair,
    as_beir,
    read_jsonl,
    read_pairs,
    write_jsonl,
)

PAIRS = [
    Pair("b.é", "feeds\ta cat", "line one\nline two\u2028same line"),
    Pair("a", "feeds a dög", '猫 🐟 \\ "'),
]


def test_jsonl_round_trip(tmp_path):
    path = tmp_path / "pairs.jsonl"
    write_jsonl(path, PAIRS)
    assert read_jsonl(path) == PAIRS
    assert len(path.read_bytes().splitlines()) == len(PAIRS)
    assert "猫" in path.read_text("utf-8")


def test_jsonl_of_triples(tmp_path):
    path = tmp_path / "pairs.jsonl"
    numbered = {f"negative_{n}": f"n{n}" for n in (10, 2, 1)}
    records = [
        {"query": "q", "document": "d", "negative": "n"},
        {"query": "q", "document": "d", "negatives": ["m", "n"]},
        {"query": "q", "document": "d", "negatives": [], "more": 1},
        # The names of sentence-transformers.
        {"anchor": "q", "positive": "d"},
        {"query": "q", "positive": "d", **numbered},
    ]
    path.write_text("".join(f"\n{json.dumps(record)}\n" for record in records))
    negatives = [("n",), ("m", "n"), (), (), ("n1", "n2", "n10")]
    read = read_jsonl(path)
    # Without an id, the number of the line.
    assert read == [
        Pair(str(2 * number), "q", "d", texts)
        for number, texts in enumerate(negatives, start=1)
    ]
    write_jsonl(path, read)
    assert read_jsonl(path) == read


@pytest.mark.parametrize(
    "line",
    [
        b'{"query": "q"}',
        b'{"query": " ", "document": 3}',
        b'{"query": "q", "document": "d", "negative": " "}',
        b'{"query": "q", "document": "d", "negatives": ["n", 3]}',
        b'{"query": "q", "document": "d", "negative": "n", "negatives": []}',
        b'{"anchor": "q", "query": "q", "document": "d"}',
        b'{"id": "a b", "query": "q", "document": "d"}',
        b'{"id": "first", "query": "q", "document": "d"}',
    ],
)
def test_jsonl_errors_name_file_and_line(tmp_path, line):
    path = tmp_path / "pairs.jsonl"
    good = b'{"id": "first", "query": "q", "document": "d"}\n\n'
    path.write_bytes(good + line + b"\n" + good)
    with pytest.raises(ValueError, match=r"pairs\.jsonl:3: "):
        read_jsonl(path)


def test_beir_round_trip(tmp_path):
    write_beir(tmp_path / "beir", as_beir(PAIRS), "test")
    pairs, left_out = read_pairs(tmp_path / "beir")
    assert pairs == [Pair(f"{p.id}/{p.id}", *p[1:]) for p in PAIRS]
    assert left_out == {}
    assert (tmp_path / "beir/qrels/test.tsv").read_text("utf-8") == (
        "query-id\tcorpus-id\tscore\nb.é\tb.é\t1\na\ta\t1\n"
    )
    corpus = (tmp_path / "beir/corpus.jsonl").read_text("utf-8").split("\n")
    assert json.loads(corpus[1]) == {
        "_id": "a",
        "title": "",
        "text": PAIRS[1].document,
    }


def test_equal_texts_are_one_query_or_document():
    pairs = [
        Pair("a", "one", "red"),
        Pair("b", "two", "red"),
        Pair("c", "one", "green"),
        Pair("d", "one", "red"),
    ]
    assert as_beir(pairs) == (
        {"a": "red", "c": "green"},
        {"a": "one", "b": "two"},
        [("a", "a", 1), ("b", "a", 1), ("a", "c", 1)],
    )


@pytest.fixture
def beir(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "one"}\n{"_id": "q2", "text": "two"}\n'
    )
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "d1", "title": "T", "text": "text"}\n'
        '{"_id": "d2", "text": "untitled", "metadata": {}}\n'
        '{"_id": "d3", "title": "", "text": " "}\n'
    )
    return tmp_path


def test_beir_reads_all_positive_judgements(beir):
    (beir / "qrels" / "train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq2\td1\t2\nq2\td2\t0\nq1\td3\t1\n"
    )
    (beir / "qrels" / "dev.tsv").write_text("q1\td1\t1\r\nq1\td2\t1\r\n")
    pairs, left_out = read_pairs(beir)
    assert pairs == [
        Pair("q1/d1", "one", "T\n\ntext"),
        Pair("q1/d2", "one", "untitled"),
        Pair("q2/d1", "two", "T\n\ntext", ("untitled",)),
    ]
    assert left_out == {
        "judgements of blank texts": 1,
        "irrelevant documents, negatives of pairs": 1,
    }
    assert read_pairs(beir, "dev") == (pairs[:2], {})
