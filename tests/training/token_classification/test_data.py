"""Files of labelled words, their windows, and the metrics."""

import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadTokenClassifierPreprocessor,
    FixedHeadTokenizer,
)
from tests.training import tiny
from training.token_classification.task import (
    LabelledWindows,
    Sentences,
    read_sentences,
)

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
        ("a.conll", b"Ann O\n", 2, "a.conll:1: must have a word"),
        ("a.conll", b"\tO\n", None, "a.conll:1: must have a word"),
        ("a.conllu", b"1\tIt\tit\n", None, "a.conllu:1: must have a word"),
        ("a.conll", b"Ann O\n", 0, r"`column` must be over 0.*Received: 0"),
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
    assert entities.score([["B-x", "O", "O"], ["B-y"]]) == {
        "accuracy": 0.75,
        "f1": 0.5,
    }
    assert entities.score([["O"] * 3, ["O"]]) == {"accuracy": 0.25, "f1": 0.0}
    parts = Sentences([["a", "b"]], [["NOUN", "VERB"]])
    assert parts.score([["NOUN", "NOUN"]]) == {"accuracy": 0.5}
