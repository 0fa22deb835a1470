"""SQuAD's JSON as a collection, and errors that say where."""

import json

import pytest

from keras_fixedhead.beir import Beir, Judgement
from training.data.pairs import Pair, read_pairs
from training.data.squad import read_squad

DATA = [
    {
        "title": "Cats",
        "paragraphs": [
            {
                "context": " A cat sleeps. ",
                "qas": [
                    {"id": "q1", "question": "Who sleeps?"},
                    {
                        "id": "q2",
                        "question": " What does it do?",
                        "answers": [],
                    },
                ],
            },
            {"context": "No question.", "qas": []},
        ],
    },
    {
        "title": "Dogs",
        "paragraphs": [
            {
                "context": "Ein H\u00fcndchen",
                "qas": [
                    {"id": "q3", "question": "Who?", "is_impossible": True}
                ],
            }
        ],
    },
]


def write(path, data):
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


def test_reads_paragraphs_and_questions(tmp_path):
    path = write(tmp_path / "train.json", DATA)
    assert read_squad(path) == Beir(
        {
            "0.0": "A cat sleeps.",
            "0.1": "No question.",
            "1.0": "Ein H\u00fcndchen",
        },
        {"q1": "Who sleeps?", "q2": "What does it do?", "q3": "Who?"},
        [Judgement("q1", "0.0", 1), Judgement("q2", "0.0", 1)],
    )
    assert read_pairs(path) == (
        [
            Pair("q1/0.0", "Who sleeps?", "A cat sleeps."),
            Pair("q2/0.0", "What does it do?", "A cat sleeps."),
        ],
        {},
    )
    with pytest.raises(ValueError, match="Only a BEIR folder has splits"):
        read_pairs(path, "dev")


def paragraph(**changes):
    good = {"context": "c", "qas": [{"id": "q", "question": "?"}]}
    return [{"paragraphs": [good | changes]}]


@pytest.mark.parametrize(
    "data, message",
    [
        (3, r"'data' must be a list. Received: 3"),
        ([[]], r"data\[0\]: must be an object with 'paragraphs'"),
        ([{"paragraphs": {}}], r"data\[0\]: 'paragraphs' must be a list"),
        (
            paragraph(context=7),
            r"data\[0\].paragraphs\[0\]: 'context' must be a string",
        ),
        (paragraph(qas=None), r"paragraphs\[0\]: 'qas' must be a list"),
        (
            paragraph(qas=[{"question": "?"}]),
            r"qas\[0\]: must be an object with 'id'",
        ),
        (
            paragraph(qas=[{"id": "a b", "question": "?"}]),
            r"qas\[0\]: 'id' must be a string without whitespace",
        ),
        (
            paragraph(qas=[{"id": "a", "question": 1}]),
            r"qas\[0\]: 'question' must be a string",
        ),
        (
            paragraph(qas=[{"id": "a", "question": "?"}] * 2),
            r"qas\[1\]: the id 'a' was there before",
        ),
    ],
)
def test_errors_say_where(tmp_path, data, message):
    path = write(tmp_path / "dev.json", data)
    with pytest.raises(ValueError, match=message):
        read_squad(path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"data2": []}', "\0\xff"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "dev.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="must hold SQuAD's JSON"):
        read_squad(path)
