"""SQuAD as a verb: what it learns, its figures, predictions and scores."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadSpanLabeler,
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTokenizer,
    squad,
)
from tests.training import tiny
from tests.training.batch_tests import BATCH, ONE, BatchesTests
from tests.training.task_tests import (
    Case,
    TaskTests,
    cross_entropy,
    first_batch,
)
from training import finetune, predict, score
from training.corpus.squad import Answer, Question, read_questions
from training.question_answering.configs import NAMED_RUNS
from training.question_answering.task import (
    SpanLabelingTask,
    WindowBatches,
    WindowedQuestions,
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
    tiny.write_squad,
)


class TestVerb(TaskTests):
    case = CASE
    required = ("--validation", "dev.json")
    other = {"n_best": 3}
    refused = [
        ({"document_stride": 0}, "`document_stride` .*=0"),
        ({"n_best": 0}, "`n_best` .* Received: 0"),
        ({"training_questions": 0}, "`training_questions` .* Received: 0"),
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
        first, *others = best[question.id]
        assert first["text"] == answers[question.id] and len(others) < 5
        assert first["text"] == question.context[first["start"] : first["end"]]


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


def test_some_of_the_questions(data, tmp_path):
    def chosen(seed):
        counts = {"training_questions": 9, "validation_questions": 3}
        task = SpanLabelingTask(tiny.squad(data, tmp_path, seed=seed, **counts))
        return task._training.questions, task._validation.questions

    first = chosen(0)
    assert first == chosen(0) != chosen(1)
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


def test_predicts_questions_without_answers(data, run, tmp_path, capsys):
    content = json.loads((data / "dev.json").read_text())
    ids = []
    for paragraph in content["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            del question["answers"]
            ids.append(question["id"])
    (tmp_path / "in.json").write_text(json.dumps(content))
    output = tmp_path / "out.json"
    args = ["--task", "squad", "--model", str(run.preset)]
    args += ["--input", str(tmp_path / "in.json"), "--output", str(output)]
    assert predict.main(args) == 0
    assert "f1" not in capsys.readouterr().out
    assert list(json.loads(output.read_text())) == ids


@pytest.fixture(scope="module")
def preprocessor():
    return FixedHeadSpanLabelerPreprocessor(
        FixedHeadTokenizer(tiny.VOCABULARY),
        sequence_length=13,
        document_stride=4,
        max_question_length=3,
    )


@pytest.fixture(scope="module")
def examples(preprocessor):
    return WindowedQuestions(tiny.questions(29), preprocessor)


class TestBatches(BatchesTests):
    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, preprocessor):
        return WindowBatches(BATCH, preprocessor, seed=3, packed=False)

    def test_padded_batches_have_a_static_shape(self, made, examples):
        spec = made.training(examples, ONE, 0).element_spec
        assert spec["token_ids"].shape[1] == 13

    def test_packed_batches_are_the_windows(self, preprocessor, examples):
        batches = WindowBatches(BATCH, preprocessor, seed=3)
        for batch in batches.evaluation(examples, ONE):
            real = batch["index"].numpy() >= 0
            chosen = batch["index"].numpy()[real]
            expected = preprocessor.pad(
                [examples.rows[i] for i in chosen], batch["token_ids"].shape[1]
            )
            for name, values in expected.items():
                assert batch[name].dtype == tf.int32
                np.testing.assert_array_equal(batch[name][real], values)
            np.testing.assert_array_equal(
                batch["spans"][real], examples.spans[chosen]
            )


def test_answers_are_marked_where_they_are_whole(examples):
    row, marked = 0, 0
    for question, divided in zip(examples.questions, examples.windows):
        (answer, _), *_ = question.answers
        for window in divided:
            first, last = examples.spans[row]
            words = [tiny.VOCABULARY[i] for i in examples.rows[row].token_ids]
            if first:
                assert words[first : last + 1] == answer.split()
                assert first >= window.context_start
                marked += 1
            else:
                assert last == 0
            row += 1
    assert row == len(examples) > len(examples.questions)
    assert examples.without_answer == 0
    assert len(examples.questions) <= marked < row
    assert examples.question_tokens_cut == 0


def test_what_fits_nowhere_is_counted(preprocessor):
    context = "red cat runs. " * 9
    answers = (Answer("cat", None), Answer(context, 0))
    long = Question("a", "red blue green one two", context, answers)
    none = Question("b", "red", "", ())
    windowed = WindowedQuestions([long, none], preprocessor)
    assert windowed.question_tokens_cut == 1
    assert windowed.without_answer == 2
    assert not windowed.spans.any()


def test_scores_of_a_file(data, tmp_path, capsys):
    predictions = tmp_path / "predictions.json"
    questions = read_questions(data / "dev.json")
    assert len(questions) == 7
    first, _, *rest = [question.id for question in questions]
    answers = {q.id: q.answers[0].text.upper() for q in questions}
    right = {key: f"The {answers[key]}!" for key in rest}
    wrong = {first: "nothing of it", "no question's": "a"}
    predictions.write_text(json.dumps(right | wrong))
    assert score.main([str(data / "dev.json"), str(predictions)]) == 0
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
    assert score.main([str(data / "dev.json"), str(predictions)]) == 1
    said = capsys.readouterr().err
    assert f"ids to answers, strings. Received: {content}" in said
