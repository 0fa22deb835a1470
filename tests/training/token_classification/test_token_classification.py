"""Token classification: what it learns and predicts."""

import numpy as np
import pytest

from keras_fixedhead import FixedHeadTokenClassifier
from tests.training import tiny
from tests.training.batch_tests import BATCH, BatchesTests
from tests.training.task_tests import Case, TaskTests
from training import finetune, predict
from training.token_classification.configs import NAMED_RUNS
from training.token_classification.task import (
    LabelledWindows,
    TokenBatches,
    read_sentences,
)

# KerasHub's tasks have a compile() of their own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)

CASE = Case(
    finetune,
    NAMED_RUNS,
    tiny.token_labels,
    {
        "steps": 90,
        "global_batch_size": 20,
        "learning_rate": 0.02,
        "warmup_steps": 10,
        "dropout": 0.0,
        "head_dropout": 0.0,
        "log_interval": 30,
        "evaluation_interval": 90,
        "checkpoint_interval": 30,
    },
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_labelled_words(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return CASE.train(data, tmp_path_factory.mktemp("run"))


class TestVerb(TaskTests):
    case = CASE
    required = ("--validation", "dev.conll")
    other = {"head_dropout": 0.5}
    refused = [
        ({"vocabulary": None}, "`vocabulary` must .* vocabulary=None"),
        ({"sequence_length": 2}, "`sequence_length` .* Received: 2"),
        ({"sequence_length": 18}, "length=17. Received: 18"),
        ({"head_dropout": 1.0}, "`head_dropout` .* Received: 1.0"),
        ({"column": 0}, "`column` must be over 0.* Received: 0"),
        ({"column": 5}, "train.conll:1: must have a word and a label"),
        ({"validation": "none.conll"}, "none.conll"),
    ]


class TestBatches(BatchesTests):
    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, model):
        return TokenBatches(BATCH, model.preprocessor, 3, False)

    @pytest.fixture(scope="class")
    @classmethod
    def examples(cls, data, model):
        sentences = read_sentences(data / "dev.conll")
        return LabelledWindows(sentences, model.preprocessor, model.labels)


@pytest.fixture(scope="module")
def model(run):
    return FixedHeadTokenClassifier.from_preset(str(run.preset))


def test_run_learns(run, model):
    first, *_, last = (m for m in run.records if "f1" in m)
    assert last["f1"] > 0.75 > 0.3 > first["f1"]
    assert last["accuracy"] > 0.9
    assert model.labels == ["B-x", "I-x", "O"]


def test_predicts_what_the_run_measured(data, run, tmp_path, capsys):
    output = tmp_path / "found.conll"
    args = ["--task", "token_classification", "--output", str(output)]
    args += ["--model", str(run.preset), "--batch_size", "7"]
    assert predict.main([*args, "--input", str(data / "dev.conll")]) == 0
    *_, last = run.records
    assert f"f1 {last['f1']:.4f}" in capsys.readouterr().out
    found, true = map(read_sentences, (output, data / "dev.conll"))
    assert found.words == true.words
    assert true.score(found.labels)["accuracy"] == last["accuracy"]
    # Words alone are labelled the same way.
    words = tmp_path / "words.txt"
    words.write_text("\n\n".join("\n".join(row) for row in true.words))
    assert predict.main([*args, "--input", str(words), "--unlabelled"]) == 0
    assert read_sentences(output) == found
    assert "accuracy" not in capsys.readouterr().out


def test_one_label_is_an_error(data, tmp_path, capsys):
    (tmp_path / "train.conll").write_text("a\tO\nb\tO\n")
    (tmp_path / "vocabulary.txt").write_bytes(
        (data / "vocabulary.txt").read_bytes()
    )
    error = CASE.error(capsys, tmp_path, tmp_path / "run")
    assert "must have at least two labels. Received: O" in error


def test_another_vocabulary_is_another_run(data, tmp_path):
    """Of the same size, which nothing else in the settings would show."""
    tokens = (data / "vocabulary.txt").read_text().split()
    other = tmp_path / "vocabulary.txt"
    other.write_text("\n".join([*tokens[:-2], *tokens[:-3:-1]]) + "\n")
    one, two = (
        CASE.task(data, tmp_path, **change).settings
        for change in ({}, {"vocabulary": other})
    )
    assert one.pop("data_sha256") != two.pop("data_sha256")
    assert one == two


def test_labels_that_training_lacks_are_wrong(data, tmp_path):
    path = tmp_path / "dev.conll"
    path.write_text(f"{tiny.WORDS[0]}\tB-y\n{tiny.WORDS[5]}\tO\n")
    task = CASE.task(data, tmp_path, validation=str(path))
    assert "count as wrong: B-y" in task.warnings[0]
    classes = np.array([[0, 0, 2, 0, 0, 0, 0, 0, 0]])
    figures = task.figures({"index": np.array([0]), "classes": classes})
    assert figures["accuracy"] == 0.5
