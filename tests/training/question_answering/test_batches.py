"""Windows of questions: what is marked in them, and their batches."""

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadSpanLabelerPreprocessor, FixedHeadTokenizer
from tests.training import tiny
from tests.training.batch_tests import BATCH, ONE, BatchesTests, take
from training.corpus.squad import Answer, Question
from training.question_answering.batches import WindowBatches, WindowedQuestions


@pytest.fixture(scope="module")
def preprocessor():
    return FixedHeadSpanLabelerPreprocessor(
        FixedHeadTokenizer(tiny.VOCABULARY),
        sequence_length=13,
        document_stride=4,
        max_question_length=3,
    )


@pytest.fixture(scope="module")
def windowed(preprocessor):
    return WindowedQuestions.of(tiny.questions(29), preprocessor)


@pytest.fixture(scope="module")
def made(preprocessor):
    return WindowBatches(BATCH, preprocessor, seed=3, packed=False)


@pytest.fixture(scope="module")
def examples(windowed):
    return windowed


class TestBatches(BatchesTests):
    pass


def tokens(windowed, row):
    return [tiny.VOCABULARY[i] for i in windowed.rows[row].token_ids]


def test_answers_are_marked_where_they_are_whole(windowed):
    row, marked = 0, 0
    for question, divided in zip(windowed.questions, windowed.windows):
        (answer, _), *_ = question.answers
        for window in divided:
            first, last = windowed.spans[row]
            words = tokens(windowed, row)
            if first:
                assert words[first : last + 1] == answer.split()
                assert first >= window.context_start
                marked += 1
            else:
                assert last == 0
            row += 1
    assert row == len(windowed) > len(windowed.questions)
    assert windowed.without_answer == 0
    assert len(windowed.questions) <= marked < row
    assert windowed.question_tokens_cut == 0


def test_what_fits_nowhere_is_counted(preprocessor):
    context = "red cat runs. " * 9
    answers = (Answer("cat", None), Answer(context, 0))
    long = Question("a", "red blue green one two", context, answers)
    none = Question("b", "red", "", ())
    windowed = WindowedQuestions.of([long, none], preprocessor)
    assert windowed.question_tokens_cut == 1
    assert windowed.without_answer == 2
    assert not windowed.spans.any()


def test_batches_are_the_windows(windowed, preprocessor):
    batches = WindowBatches(BATCH, preprocessor, seed=3)
    for batch in batches.evaluation(windowed, ONE):
        real = batch["index"].numpy() >= 0
        chosen = batch["index"].numpy()[real]
        length = batch["token_ids"].shape[1]
        expected = preprocessor.pad([windowed.rows[i] for i in chosen], length)
        for name, values in expected.items():
            assert batch[name].dtype == tf.int32
            np.testing.assert_array_equal(batch[name][real], values)
        np.testing.assert_array_equal(
            batch["spans"][real], windowed.spans[chosen]
        )


def test_an_epoch_has_no_window_twice(windowed, made):
    spec = made.training(windowed, ONE, 0).element_spec
    assert spec["token_ids"].shape[1] == 13
    steps = len(windowed) // BATCH
    taken = take(made, windowed, 2 * steps)
    rows = [
        [tuple(row) for batch in epoch for row in batch["token_ids"]]
        for epoch in (taken[:steps], taken[steps:])
    ]
    assert all(len(set(epoch)) == len(epoch) for epoch in rows)
    assert rows[0] != rows[1]
