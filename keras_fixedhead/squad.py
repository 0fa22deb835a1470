"""The metrics of SQuAD v1.1: exact match and F1 of answers.

They equal those of the official script (Rajpurkar et al. 2016,
https://arxiv.org/abs/1606.05250, section 6.1).
"""

import collections
import re
import string
from collections.abc import Iterable, Mapping

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answers: Iterable[str]) -> float:
    """1.0 if a prediction is one of the answers, both normalized, else 0.0."""
    return float(
        normalize_answer(prediction) in map(normalize_answer, _some(answers))
    )


def f1(prediction: str, answers: Iterable[str]) -> float:
    """The F1, from 0 to 1, of a prediction and the answer closest to it."""
    words = normalize_answer(prediction).split()
    return max(
        _f1(words, normalize_answer(answer).split())
        for answer in _some(answers)
    )


def score_answers(
    answers: Mapping[str, list[str]], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Scores predictions by the ids of their questions.

    `answers` holds at least one answer for each question. Returns
    `exact_match` and `f1` in percent, averaged over all questions, where one
    of the `missing` predictions counts as 0, and the number of `unknown` ids.
    """
    if not answers or not all(answers.values()):
        raise ValueError(
            "`answers` must hold questions, and an answer for each. "
            f"Received: {answers!r:.200}"
        )
    matches = scores = 0.0
    missing = 0
    for key, texts in answers.items():
        if key not in predictions:
            missing += 1
            continue
        matches += exact_match(predictions[key], texts)
        scores += f1(predictions[key], texts)
    return {
        "exact_match": 100.0 * matches / len(answers),
        "f1": 100.0 * scores / len(answers),
        "missing": missing,
        "unknown": len(predictions.keys() - answers.keys()),
    }


def _some(answers):
    if isinstance(answers, str) or not (texts := list(answers)):
        raise ValueError(
            "`answers` must be a list of at least one string. "
            f"Received: {answers!r}"
        )
    return texts


def _f1(words, others):
    common = (collections.Counter(words) & collections.Counter(others)).total()
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(others)
    return 2.0 * precision * recall / (precision + recall)
