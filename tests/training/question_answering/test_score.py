"""The verb that scores predictions."""

import json

import pytest

from tests.training import tiny
from training.corpus.squad import read_questions
from training.score import main


@pytest.fixture
def data(tmp_path):
    return tiny.write_squad(tmp_path / "data") / "dev.json"


def test_figures(data, tmp_path, capsys):
    predictions = tmp_path / "predictions.json"
    questions = read_questions(data)
    assert len(questions) == 7
    first, _, *rest = [question.id for question in questions]
    answers = {q.id: q.answers[0].text.upper() for q in questions}
    right = {key: f"The {answers[key]}!" for key in rest}
    wrong = {first: "nothing of it", "no question's": "a"}
    predictions.write_text(json.dumps(right | wrong))
    assert main([str(data), str(predictions)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "exact_match": pytest.approx(500 / 7),
        "f1": pytest.approx(500 / 7),
        "missing": 1,
        "unknown": 1,
    }


@pytest.mark.parametrize("content", ["{", "3", '{"a": ["b"]}'])
def test_what_are_no_predictions(data, tmp_path, capsys, content):
    predictions = tmp_path / "predictions.json"
    predictions.write_text(content)
    assert main([str(data), str(predictions)]) == 1
    said = capsys.readouterr().err
    assert f"ids to answers, strings. Received: {content}" in said
