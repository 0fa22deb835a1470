"""SQuAD as a verb: what it learns, its figures, its predictions, its errors."""

import json

import numpy as np
import pytest

from keras_fixedhead import FixedHeadSpanLabeler, squad
from tests.training import tiny
from tests.training.task_tests import (
    Case,
    TaskTests,
    cross_entropy,
    first_batch,
)
from training import finetune, predict
from training.corpus.squad import read_questions
from training.engine.preset import SHAPE
from training.question_answering.configs import NAMED_RUNS
from training.question_answering.task import SpanLabelingTask

# KerasHub's tasks have a compile() of their own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)


def by_heart(data, workdir, **changes):
    """A run that evaluates on its own 32 questions."""
    changes = {"validation": str(data / "train.json"), **changes}
    return tiny.squad(data, workdir, **changes)


CASE = Case(
    finetune,
    NAMED_RUNS,
    by_heart,
    {
        "num_layers": 2,
        "num_heads": 2,
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "head_size": 17,
        "dropout": 0.0,
        "head_dropout": 0.0,
        "steps": 300,
        "global_batch_size": 32,
        "learning_rate": 0.01,
        "warmup_steps": 20,
        "log_interval": 50,
        "evaluation_interval": 300,
        "checkpoint_interval": 300,
    },
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_squad(tmp_path_factory.mktemp("data"), count=32)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return CASE.train(data, tmp_path_factory.mktemp("run"))


class TestVerb(TaskTests):
    case = CASE
    required = ("--validation", "dev.json")
    other = {"n_best": 3}
    refused = [
        ({"vocabulary": None}, "`vocabulary` must"),
        ({"sequence_length": 18}, "length=17. Received: 18"),
        ({"head_dropout": 1.0}, "`head_dropout` .* Received: 1.0"),
        ({"document_stride": 0}, "`document_stride` .*=0"),
        ({"n_best": 0}, "`n_best` .* Received: 0"),
        ({"training_questions": 0}, "`training_questions` .* Received: 0"),
        ({"validation": "no.json"}, "no.json"),
        ({"global_batch_size": 999}, "`global_batch_size` .* Received: 999"),
    ]


def test_learns_32_questions_by_heart(run):
    *_, last = run.records
    assert last["f1"] > 95 and last["exact_match"] > 90
    labeler = FixedHeadSpanLabeler.from_preset(str(run.preset))
    assert labeler.preprocessor.document_stride == 5


def test_predictions_are_those_that_were_measured(data, run, tmp_path, capsys):
    output, more = tmp_path / "answers.json", tmp_path / "best.json"
    args = ["--task", "squad", "--model", str(run.preset)]
    args += ["--input", str(data / "train.json"), "--output", str(output)]
    args += ["--n_best_output", str(more), "--n_best", "5", "--batch_size", "7"]
    assert predict.main(args) == 0
    answers = json.loads(output.read_text())
    questions = read_questions(data / "train.json")
    assert list(answers) == [question.id for question in questions]
    measured = squad.score_answers(
        {q.id: [text for text, _ in q.answers] for q in questions}, answers
    )
    *_, last = run.records
    said = capsys.readouterr().out
    for name in ("exact_match", "f1"):
        assert last[name] == pytest.approx(measured[name])
        assert f"{name} {measured[name]:.4f}" in said
    best = json.loads(more.read_text())
    for question in questions:
        found = best[question.id]
        assert 1 <= len(found) <= 5
        assert found[0]["text"] == answers[question.id]
        for answer in found:
            there = question.context[answer["start"] : answer["end"]]
            assert answer["text"] == there
        scores = [answer["score"] for answer in found]
        assert scores == sorted(scores, reverse=True)


def test_loss_by_hand(data, tmp_path):
    task = CASE.task(data, tmp_path, dropout=0.0, head_dropout=0.0)
    batch = first_batch(task)
    logits = task.model(task.model_inputs(batch))
    loss, metrics = task.loss(batch, task.totals(batch))
    losses = []
    for column, name in enumerate(("start", "end")):
        right = batch["spans"].numpy()[:, column]
        losses.append(cross_entropy(logits[name], right))
        hits = np.mean(np.argmax(logits[name], axis=-1) == right)
        assert float(metrics[f"{name}_accuracy"]) == pytest.approx(hits)
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-4)


def test_starts_from_an_embedder(data, tmp_path):
    tiny.embedder().save_to_preset(str(tmp_path / "start"))
    changes = dict.fromkeys([*SHAPE, "vocabulary"])
    changes["init"] = tmp_path / "start"
    task = CASE.task(data, tmp_path, **changes)
    start = tiny.embedder().backbone
    for one, two in zip(
        task.model.backbone.get_weights(), start.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, two)


def test_some_of_the_questions(data, tmp_path):
    def ids(seed):
        run = tiny.squad(
            data,
            tmp_path,
            training_questions=9,
            validation_questions=3,
            seed=seed,
        )
        task = SpanLabelingTask(run)
        return [
            [question.id for question in windowed.questions]
            for windowed in (task._training, task._validation)
        ]

    first, again, other = ids(0), ids(0), ids(1)
    assert first == again != other
    assert list(map(len, first)) == [9, 3]


def test_predicting_with_another_model_is_one_line(data, tmp_path, capsys):
    tiny.embedder().save_to_preset(str(tmp_path / "preset"))
    args = ["--task", "squad", "--input", str(data / "train.json")]
    args += ["--output", str(tmp_path / "o")]
    for model in ("preset", "nothing"):
        assert predict.main([*args, "--model", str(tmp_path / model)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "`model` must be a preset" in line
    assert not (tmp_path / "o").exists()


def test_predicts_questions_without_answers(data, tmp_path, capsys):
    task = CASE.task(data, tmp_path)
    task.save(tmp_path / "preset")
    content = json.loads((data / "dev.json").read_text())
    first, second, *others = (
        question
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    )
    first["answers"] = []
    for question in (second, *others):
        del question["answers"]
    (tmp_path / "in.json").write_text(json.dumps(content))
    output = tmp_path / "out.json"
    args = ["--task", "squad", "--model", str(tmp_path / "preset")]
    args += ["--input", str(tmp_path / "in.json"), "--output", str(output)]
    assert predict.main(args) == 0
    assert "f1" not in capsys.readouterr().out
    expected = [question["id"] for question in (first, second, *others)]
    assert list(json.loads(output.read_text())) == expected
