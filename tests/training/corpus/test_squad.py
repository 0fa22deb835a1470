"""SQuAD's JSON as a collection and as questions; errors that say where."""

import functools
import json
import pathlib
import re

import pytest

from keras_fixedhead import (
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.beir import Beir, Judgement
from keras_fixedhead.squad import normalize_answer, score_answers
from training.corpus.pairs import Pair, read_pairs
from training.corpus.squad import Answer, Question, read_questions, read_squad

DATA = pathlib.Path(__file__).parents[4] / "shared" / "data"
FILE = DATA / "squad" / "dev-v1.1.json"


def article(*paragraphs):
    """An article of pairs of a context and its questions."""
    return {
        "title": "Cats",
        "paragraphs": [
            {"context": context, "qas": questions}
            for context, questions in paragraphs
        ],
    }


def answer(text, start):
    return {"text": text, "answer_start": start}


def question(key, text, *answers, **more):
    """A question, with answers in pairs of a text and where it starts."""
    if answers:
        more["answers"] = [answer(*one) for one in answers]
    return {"id": key, "question": text, **more}


def write(path, data):
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


def test_reads_paragraphs_and_questions(tmp_path):
    data = [
        article(
            (
                " A cat sleeps. ",
                [
                    question("q1", "Who sleeps?"),
                    question("q2", " What does it do?", answers=[]),
                ],
            ),
            ("No question.", []),
        ),
        article(("Ein Hündchen", [question("q3", "Who?", is_impossible=True)])),
    ]
    path = write(tmp_path / "train.json", data)
    assert read_squad(path) == Beir(
        {
            "0.0": "A cat sleeps.",
            "0.1": "No question.",
            "1.0": "Ein Hündchen",
        },
        {"q1": "Who sleeps?", "q2": "What does it do?", "q3": "Who?"},
        [Judgement("q1", "0.0", 1), Judgement("q2", "0.0", 1)],
    )
    assert read_pairs(path) == (
        [
            Pair("q1/0.0", "Who sleeps?", "A cat sleeps."),
            Pair("q2/0.0", "What does it do?", "A cat sleeps."),
        ],
        {"questions without an answer": 1},
    )
    with pytest.raises(ValueError, match="Only a BEIR folder has splits"):
        read_pairs(path, "dev")


def paragraph(**changes):
    good = {"context": "c", "qas": [{"id": "q", "question": "?"}]}
    return {"data": [{"paragraphs": [good | changes]}]}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"{", "dev.json must be like SQuAD's JSON"),
        (paragraph(context=7), r"graphs\[0\]: 'context' must be a string"),
        (paragraph(qas=[{}]), r"qas\[0\] must be like .* KeyError\('id'\)"),
        (
            paragraph(qas=[{"id": "a", "question": "?"}] * 2),
            r"qas\[1\]: the id 'a' was there before",
        ),
    ],
)
def test_errors_say_where(tmp_path, content, message):
    path = tmp_path / "dev.json"
    if isinstance(content, dict):
        content = json.dumps(content).encode()
    path.write_bytes(content)
    for read in (read_squad, read_questions):
        with pytest.raises(ValueError, match=message):
            read(path)


CONTEXT = " A cat sees the other cat\u2019s é. Aaa aaa"
ANSWERED = [
    article(
        (
            CONTEXT,
            [
                # There are two cats, and none stands there.
                question("q1", " Who sees? ", ("A cat", 1), ("cat", 4)),
                question(
                    *("q2", "What?", ("é", 0), ("the other", -1), ("cat", 21)),
                    *(("dog", 3), ("", 3), ("aa", 90)),
                ),
                question("q3", "?", answers=[]),
                question("q4", "?"),
            ],
        ),
        (
            "x",
            [
                question("q5", "?", is_impossible=True, answers=[]),
                question("q6", "x?", ("x", 0), is_impossible=False),
            ],
        ),
    )
]
PLACES = {"é": 28, "the other": 12} | dict.fromkeys(["cat", "dog", "", "aa"])
QUESTIONS = [
    Question(
        "q1", "Who sees?", CONTEXT, (Answer("A cat", 1), Answer("cat", None))
    ),
    Question("q2", "What?", CONTEXT, tuple(map(Answer._make, PLACES.items()))),
    Question("q6", "x?", "x", (Answer("x", 0),)),
]


def test_reads_questions(tmp_path):
    path = write(tmp_path / "dev.json", ANSWERED)
    said = []
    assert read_questions(path, said.append) == QUESTIONS
    assert said == [
        f"{path}: 2 answers that stand elsewhere, found there",
        f"{path}: 5 answers whose place is not known",
        f"{path}: 1 impossible questions, left out",
        f"{path}: 2 questions without an answer, left out",
    ]


@pytest.mark.parametrize("answers", [3, [{"text": "c"}], [answer("c", "0")]])
def test_errors_in_answers_say_where(tmp_path, answers):
    content = paragraph(qas=[question("q", "?", answers=answers)])
    path = write(tmp_path / "dev.json", content["data"])
    message = re.escape("qas[0]: 'answers' must be like SQuAD's")
    with pytest.raises(ValueError, match=message):
        read_questions(path)


# TensorFlow Datasets 4.9 asks protobuf 7 for what it frowns upon.
@pytest.mark.filterwarnings("ignore:label.. is deprecated:DeprecationWarning")
def test_tensorflow_datasets(tmp_path, monkeypatch):
    """Their own builder of SQuAD, of these files; it shuffles."""
    import tensorflow_datasets as tfds

    data = json.loads(json.dumps(ANSWERED))
    for paragraphs in data[0]["paragraphs"]:
        for one in paragraphs["qas"]:
            one.setdefault("answers", [])
            one.setdefault("is_impossible", False)
    last = [{"title": "x", "paragraphs": data[0]["paragraphs"][1:]}]
    files = {
        "train": write(tmp_path / "train.json", data),
        "dev": write(tmp_path / "dev.json", last),
    }
    monkeypatch.setattr(
        tfds.download.DownloadManager,
        "download_and_extract",
        lambda self, urls: {name: files[name] for name in urls},
    )
    folder = tmp_path / "datasets"
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(folder))
    said = []
    found = read_questions("tfds:squad/v2.0", said.append)
    assert sorted(found, key=lambda question: question.id) == QUESTIONS
    assert "tfds:squad/v2.0: 1 impossible questions, left out" in said
    name = "tfds:squad/v1.1:validation"
    assert read_questions(name) == QUESTIONS[2:]


@pytest.mark.slow
@pytest.mark.skipif(not FILE.exists(), reason=f"wants {FILE}")
def test_real_answers_are_recovered_from_their_tokens():
    """Every answer of the dev set, from its characters to tokens and back."""
    questions = read_questions(FILE)
    preprocessor = FixedHeadSpanLabelerPreprocessor(
        FixedHeadTokenizer(str(DATA / "vocab" / "vocab.txt"))
    )
    windows_of = functools.lru_cache(
        lambda context: preprocessor.windows("", context)
    )
    different, predictions = 0, {}
    for question in questions:
        answer = question.answers[0]
        windows = windows_of(question.context)
        first, last = windows.span_of(answer.start, answer.text)
        found = windows.text_of(first, last)
        predictions[question.id] = found
        different += normalize_answer(found) != normalize_answer(answer.text)
        assert any(
            row.token_range[0] <= first and last < row.token_range[1]
            for row in windows
        )
    figures = score_answers(
        {q.id: [answer.text for answer in q.answers] for q in questions},
        predictions,
    )
    assert len(questions) == 10_570
    assert different <= 0.005 * len(questions)
    assert figures["exact_match"] >= 99.5
