"""SQuAD's JSON as a collection and as questions; errors that say where."""

import json

import pytest

from keras_fixedhead.beir import Beir, Judgement
from training.corpus.pairs import Pair, read_pairs
from training.corpus.squad import Answer, Question, read_questions, read_squad


def article(*paragraphs):
    """An article of pairs of a context and its questions."""
    return {
        "title": "Cats",
        "paragraphs": [
            {"context": context, "qas": questions}
            for context, questions in paragraphs
        ],
    }


def question(key, text, **more):
    return {"id": key, "question": text, **more}


DATA = [
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


def write(path, data):
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


def test_reads_paragraphs_and_questions(tmp_path):
    path = write(tmp_path / "train.json", DATA)
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
    for read in (read_squad, read_questions):
        with pytest.raises(ValueError, match=message):
            read(path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"data2": []}', "\0\xff"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "dev.json"
    path.write_bytes(content.encode("latin-1"))
    for read in (read_squad, read_questions):
        with pytest.raises(ValueError, match="must hold SQuAD's JSON"):
            read(path)


CONTEXT = " A cat sees the other cat\u2019s é. Aaa aaa"


def answer(text, start):
    return {"text": text, "answer_start": start}


ANSWERED = [
    article(
        (
            CONTEXT,
            [
                question(
                    "q1",
                    " Who sees? ",
                    # There are two cats, and none stands there.
                    answers=[answer("A cat", 1), answer("cat", 4)],
                ),
                question(
                    "q2",
                    "What?",
                    answers=[
                        answer("é", 0),
                        answer("the other", -1),
                        answer("cat", 21),
                        answer("dog", 3),
                        answer("", 3),
                        answer("aa", 90),
                    ],
                ),
                question("q3", "?", answers=[]),
                question("q4", "?"),
            ],
        ),
        (
            "x",
            [
                question("q5", "?", is_impossible=True, answers=[]),
                question(
                    "q6", "x?", is_impossible=False, answers=[answer("x", 0)]
                ),
            ],
        ),
    )
]
QUESTIONS = [
    Question(
        "q1", "Who sees?", CONTEXT, (Answer("A cat", 1), Answer("cat", None))
    ),
    Question(
        "q2",
        "What?",
        CONTEXT,
        (
            Answer("é", 28),
            Answer("the other", 12),
            Answer("cat", None),
            Answer("dog", None),
            Answer("", None),
            Answer("aa", None),
        ),
    ),
    Question("q6", "x?", "x", (Answer("x", 0),)),
]


def test_reads_questions(tmp_path):
    path = write(tmp_path / "dev.json", ANSWERED)
    said = []
    assert (
        read_questions(path, said.append) == QUESTIONS == (read_questions(path))
    )
    assert said == [
        f"{path}: 2 answers that stand elsewhere, found there",
        f"{path}: 5 answers whose place is not known",
        f"{path}: 1 impossible questions, left out",
        f"{path}: 2 questions without an answer, left out",
    ]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (3, r"qas\[0\]: 'answers' must be a list. Received: 3"),
        ([{"text": "c"}], r"answers\[0\]: must be .* with 'answer_start'"),
        ([answer("c", "0")], "'answer_start' must be an integer. .*'0'"),
        ([answer("c", True)], "'answer_start' must be an integer. .*True"),
        ([answer(7, 0)], r"answers\[0\]: 'text' must be a string"),
    ],
)
def test_errors_in_answers_say_where(tmp_path, answers, message):
    qas = [question("q", "?", answers=answers)]
    path = write(tmp_path / "dev.json", paragraph(qas=qas))
    with pytest.raises(ValueError, match=message):
        read_questions(path)


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """A folder where they are made of these files, not of downloaded ones."""
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
    return tmp_path / "datasets"


# TensorFlow Datasets 4.9 asks protobuf 7 for what it frowns upon.
@pytest.mark.filterwarnings("ignore:label.. is deprecated:DeprecationWarning")
def test_tensorflow_datasets(datasets):
    """Their own builder of SQuAD; without what is said, and shuffled."""
    said = []
    for version, impossible in (("1.1", 0), ("2.0", 1)):
        name = f"tfds:squad/v{version}"
        found = read_questions(name, said.append, datasets)
        assert sorted(found, key=lambda question: question.id) == QUESTIONS
        assert (f"{name}: 1 impossible questions, left out" in said) == (
            impossible > 0
        )
    name = "tfds:squad/v1.1:validation"
    assert read_questions(name, None, datasets) == QUESTIONS[2:]
    with pytest.raises(ValueError, match="Unknown split 'dev'"):
        read_questions("tfds:squad/v1.1:dev", None, datasets)
    with pytest.raises(ValueError, match="no_such_dataset.*not found") as error:
        read_questions("tfds:no_such_dataset", None, datasets)
    assert len(str(error.value).splitlines()) == 1
