"""Files of documents divided into shards."""

import json

import pytest

from export.index import corpus as corpora
from keras_fixedhead import beir

BLANK = ["", " \n\t", "\x01\u200b\ufeff", "\ufffd\u0301"]


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"_id": "a b", "id": "c"}, "a b"),
        ({"id": 17}, "17"),
        ({}, "2"),
    ],
)
def test_identifiers(tmp_path, record, name):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n" + json.dumps(record | {"text": "a"}))
    [shard], _ = corpora.plan(path, 3)
    assert corpora.read(path, shard) == ([name], ["a"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"text": "a"}\n\n{"title": "a"}\n', ":3: 'text' must be a string"),
        ('{"text": "a", "_id": ""}\n', ":1: '_id' must not be empty"),
        (
            '{"_id": "2", "text": "a"}\n{"text": "b"}\n',
            ":2: line 1 has the identifier '2', too",
        ),
        ("\n", "jsonl has no document"),
        (
            "".join(json.dumps({"text": t}) + "\n" for t in BLANK),
            "no document: all 4 are blank",
        ),
    ],
)
def test_corpora_that_will_not_do(tmp_path, lines, message):
    path = tmp_path / "corpus.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match="corpus.jsonl") as error:
        corpora.plan(path, 3)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_corpus_that_changes_meanwhile(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{n}", "text": f"text {n}"} for n in range(7)]
    beir.write_records(path, records)
    shards, _ = corpora.plan(path, 3)
    path.write_text(path.read_text().replace("text 1", "TEXT 1"))
    with pytest.raises(ValueError, match="changed while it was read"):
        corpora.read(path, shards[0])
    assert corpora.read(path, shards[1])[0] == ["d3", "d4", "d5"]


def test_a_blank_document_changes_no_shard(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{n}", "text": f"text {n}"} for n in range(7)]
    beir.write_records(path, records)
    before, none = corpora.plan(path, 3)
    beir.write_records(path, [{"_id": "b", "text": "\x07"}, *records])
    after, blank = corpora.plan(path, 3)
    assert [s.sha256 for s in after] == [s.sha256 for s in before]
    assert (none, blank) == ([], ["b"])
