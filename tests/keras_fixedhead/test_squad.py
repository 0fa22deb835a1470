"""SQuAD's figures: by hand, and beside the official script's."""

import random

import pytest

from keras_fixedhead import squad

pytestmark = pytest.mark.any_backend

WORDS = [
    *("the", "The", "a", "an", "A.", "AN", "cat", "Cat,", "cats", "sleeps"),
    *("U.S.", "don't", "£3", "$1,000", "—", "(red)", "an-a", "theory", "--"),
    *("Ünïcödé", "İstanbul", "ΣΑΣ", "中文", "ß", "\u00a0", "\t", "\n", "’s"),
]


def test_measure():
    answers = {
        "q1": ["cat", "red cat"],
        "q2": ["dog"],
        "q3": ["x"],
        "q4": ["y"],
    }
    predictions = {"q1": "a red cat", "q2": "dog house", "q3": "", "q9": "x"}
    assert squad.score_answers(answers, predictions) == {
        "exact_match": 25.0,
        "f1": pytest.approx(100 * (1 + 2 / 3) / 4),
        "missing": 1,
        "unknown": 1,
    }


def test_equals_the_official_script():
    from official.nlp.tools import squad_evaluate_v1_1 as official

    draw = random.Random(0)

    def phrase(most):
        return " ".join(draw.choices(WORDS, k=draw.randint(0, most)))

    answers = {
        f"q{i}": [phrase(3) for _ in range(draw.randint(1, 5))]
        for i in range(700)
    }
    predictions = {
        key: draw.choice([phrase(4), draw.choice(texts), texts[0].upper()])
        for key, texts in answers.items()
        if draw.random() > 0.1
    }

    questions = [
        {"id": key, "answers": [{"text": text} for text in texts]}
        for key, texts in answers.items()
    ]
    theirs = official.evaluate(
        [{"paragraphs": [{"qas": questions}]}], predictions
    )
    found = squad.score_answers(answers, predictions)
    missing = len(answers) - len(predictions)
    assert found == {
        "exact_match": pytest.approx(100 * theirs["exact_match"]),
        "f1": pytest.approx(100 * theirs["final_f1"]),
        "missing": missing,
        "unknown": 0,
    }
    assert 20 < found["f1"] < 80 and 20 < found["exact_match"] < 80
    assert missing > 20


@pytest.mark.parametrize("answers", [{}, {"q1": ["x"], "q2": []}, {"q1": "x"}])
def test_errors(answers):
    with pytest.raises(ValueError, match="list of answers .*Received: {"):
        squad.score_answers(answers, {"q1": "x"})
