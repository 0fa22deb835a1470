"""Token classification: what it learns and predicts."""

import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadTokenClassifier,
    FixedHeadTokenClassifierPreprocessor,
    FixedHeadTokenizer,
)
from tests.training import tiny
from tests.training.batch_tests import BATCH, BatchesTests
from tests.training.task_tests import Case, TaskTests
from training import finetune, predict
from training.token_classification.configs import NAMED_RUNS
from training.token_classification.task import (
    LabelledWindows,
    Sentences,
    TokenBatches,
    read_sentences,
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
    tiny.write_labelled_words,
)


class TestVerb(TaskTests):
    case = CASE
    required = ("--validation", "dev.conll")
    other = {"head_dropout": 0.5}
    refused = [
        ({"sequence_length": 2}, "`sequence_length` .* Received: 2"),
        ({"column": 0}, "`column` must be over 0.* Received: 0"),
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


def test_one_label_is_an_error(data, tmp_path):
    (tmp_path / "train.conll").write_text("a\tO\nb\tO\n")
    vocabulary = data / "vocabulary.txt"
    with pytest.raises(ValueError, match="two labels. Received: O"):
        CASE.task(tmp_path, tmp_path, vocabulary=vocabulary)


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


CONLL = (
    "-DOCSTART- -X- O O\n\nAnn NNP B-NP B-person\nsleeps VBZ B-VP O\n\n\n"
    "# NN O O"
)
UNIVERSAL = (
    "# text = It's here\n1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tIt\tit\tPRON\tPRP\t_\t_\t_\t_\t_\n2\t's\tbe\tAUX\tVBZ\t_\t_\t_\t_\t_\n"
    "2.1\tgone\t_\tVERB\t_\t_\t_\t_\t_\t_\n"
    "3\tin line\tin line\tADV\tRB\t_\t_\t_\t_\t_\n\n"
)


@pytest.mark.parametrize(
    ("name", "text", "column", "words", "labels"),
    [
        ("a.conll", CONLL, None, [["Ann", "sleeps"], ["#"]],
         [["B-person", "O"], ["O"]]),
        ("a.txt", CONLL, 1, [["Ann", "sleeps"], ["#"]],
         [["NNP", "VBZ"], ["NN"]]),
        # A line of white space ends a sentence, too.
        ("a.tsv", "\ufeffa b\tO\r\n\t\r\n\u2028\tO\n", None,
         [["a b"], ["\u2028"]], [["O"], ["O"]]),
        ("a.conllu", UNIVERSAL, None, [["It", "'s", "in line"]],
         [["PRON", "AUX", "ADV"]]),
        ("a.conllu", UNIVERSAL, 4, [["It", "'s", "in line"]],
         [["PRP", "VBZ", "RB"]]),
    ],
)  # fmt: skip
def test_read_sentences(tmp_path, name, text, column, words, labels):
    (tmp_path / name).write_bytes(text.encode())
    sentences = read_sentences(tmp_path / name, column)
    assert sentences.words == words
    assert sentences.labels == labels
    alone = read_sentences(tmp_path / name, labelled=False)
    assert alone == Sentences(words, None)


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("a.conll", b"Ann O\nsleeps\n", None,
         r"a\.conll:2: must have a word and a label\. Received: 'sleeps'"),
        ("a.conll", b"\tO\n", None, "a.conll:1: must have a word"),
        ("a.conllu", b"1\tIt\tit\n", None, "a.conllu:1: must have a word"),
        ("a.conllu", b"", 1, r"`column` must be over 1"),
        ("a.conll", b"\n\n", None, r"must have a word\. Received: none"),
        ("a.conll", b"\xff O\n", None, r"a\.conll is not UTF-8"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, name, content, column, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_sentences(tmp_path / name, column)


def test_windows_hold_whole_words_and_their_classes():
    first, second, third = tiny.WORDS[:3]
    preprocessor = FixedHeadTokenClassifierPreprocessor(
        FixedHeadTokenizer(tiny.VOCABULARY), sequence_length=5
    )
    sentences = Sentences(
        # The second word has no token, the last of the first four tokens.
        [[first, "\u200b", second, third, f"{first}'{first}'"], [second]],
        [["A", "B", "A", "unknown", "A"], ["B"]],
    )
    windows = LabelledWindows(sentences, preprocessor, ["A", "B"])
    assert [row.places for row in windows.rows] == [[1, -1, 2, 3], [1], [1]]
    assert list(map(len, windows.rows[0])) == [5, 4]
    assert [len(row.token_ids) for row in windows.rows] == [5, 5, 3]
    assert windows.numbers == [
        [0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [0, 2, 0]
    ]  # fmt: skip
    classes = np.array([[9, 1, 1, 0, 9], [9, 0, 9, 9, 9], [9, 1, 9, 9, 9]])
    assert windows.labels_of(classes) == [["B", "O", "B", "A", "A"], ["B"]]


def test_scores():
    labels = [["B-x", "I-x", "O"], ["B-y"]]
    entities = Sentences([["a", "b", "c"], ["d"]], labels)
    assert entities.score(labels) == {"accuracy": 1.0, "f1": 1.0}
    # Of two entities and of two found ones, one is right.
    found = entities.score([["B-x", "O", "O"], ["B-y"]])
    assert found == {"accuracy": 0.75, "f1": 0.5}
    assert entities.score([["O"] * 3, ["O"]]) == {"accuracy": 0.25, "f1": 0.0}
    parts = Sentences([["a", "b"]], [["NOUN", "VERB"]])
    assert parts.score([["NOUN", "NOUN"]]) == {"accuracy": 0.5}
