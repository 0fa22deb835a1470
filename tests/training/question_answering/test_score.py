"""The verb that scores predictions."""

import json
import re

import pytest

from tests.training import tiny
from training.score import main


@pytest.fixture
def data(tmp_path):
    return tiny.write_squad(tmp_path / "data") / "dev.json"


def test_figures(data, tmp_path, capsys):
    predictions = tmp_path / "predictions.json"
    answers = _answers(data)
    assert len(answers) == 7
    first, second, *rest = answers
    right = {key: f"The {answers[key].upper()}!" for key in rest}
    wrong = {first: "nothing of it", "no question's": "a"}
    predictions.write_text(json.dumps(right | wrong))
    assert main([str(data), str(predictions)]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured == {
        "exact_match": pytest.approx(500 / 7),
        "f1": pytest.approx(500 / 7),
        "missing": 1,
        "unknown": 1,
    }


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not JSON"),
        ("[]", r"must be a JSON object .* Received: \[\]"),
        ('{"a": ["b"]}', r"the answer to 'a' must be a string. .*\['b'\]"),
    ],
)
def test_what_are_no_predictions(data, tmp_path, capsys, content, message):
    predictions = tmp_path / "predictions.json"
    predictions.write_text(content)
    assert main([str(data), str(predictions)]) != 0
    said = capsys.readouterr()
    assert re.search(message, said.err)
    assert "predictions.json" in said.err
    assert not said.out


def _answers(data):
    return {
        qa["id"]: qa["answers"][0]["text"]
        for article in json.loads(data.read_text())["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }
