"""Every answer of SQuAD's dev set, from its characters to tokens and back."""

import functools
import pathlib

import pytest

from keras_fixedhead import (
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.squad import normalize_answer, score_answers
from training.corpus.squad import read_questions

DATA = pathlib.Path(__file__).parents[4] / "shared" / "data"
FILE = DATA / "squad" / "dev-v1.1.json"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.exists(), reason=f"wants {FILE}"),
]


def test_answers_are_recovered_from_their_tokens():
    questions = read_questions(FILE)
    preprocessor = FixedHeadSpanLabelerPreprocessor(
        FixedHeadTokenizer(str(DATA / "vocab" / "vocab.txt"))
    )
    windows_of = functools.lru_cache(
        lambda context: preprocessor.windows("", context)
    )
    different, predictions = 0, {}
    for question in questions:
        answer = question.answers[0]
        windows = windows_of(question.context)
        first, last = windows.span_of(answer.start, answer.text)
        found = windows.text_of(first, last)
        predictions[question.id] = found
        different += normalize_answer(found) != normalize_answer(answer.text)
        assert any(
            row.token_range[0] <= first and last < row.token_range[1]
            for row in windows
        )
    figures = score_answers(
        {q.id: [answer.text for answer in q.answers] for q in questions},
        predictions,
    )
    assert len(questions) == 10_570
    assert different <= 0.005 * len(questions)
    assert figures["exact_match"] >= 99.5
