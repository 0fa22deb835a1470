"""The metrics of SQuAD v1.1: exact match and F1 of answers.

They equal those of the official script (Rajpurkar et al. 2016,
https://arxiv.org/abs/1606.05250, section 6.1).
"""

import collections
import re
import string
from collections.abc import Mapping

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def score_answers(
    answers: Mapping[str, list[str]], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Scores predictions by the ids of their questions.

    `answers` holds a list of at least one answer for each question. Returns
    `exact_match` and `f1`, means over all questions in percent, where the
    answer closest to the prediction counts and one of the `missing`
    predictions is 0, and the number of `unknown` ids.
    """
    if not answers or not all(
        texts and not isinstance(texts, str) for texts in answers.values()
    ):
        raise ValueError(
            "`answers` must hold questions, and a list of answers for each. "
            f"Received: {answers!r:.200}"
        )
    matches = scores = 0.0
    missing = answers.keys() - predictions.keys()
    for key in [key for key in answers if key not in missing]:
        words = normalize_answer(predictions[key]).split()
        wanted = [normalize_answer(text).split() for text in answers[key]]
        matches += words in wanted
        scores += max(_f1(words, others) for others in wanted)
    return {
        "exact_match": 100.0 * matches / len(answers),
        "f1": 100.0 * scores / len(answers),
        "missing": len(missing),
        "unknown": len(predictions.keys() - answers.keys()),
    }


def _f1(words, others):
    common = (collections.Counter(words) & collections.Counter(others)).total()
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(others)
    return 2.0 * precision * recall / (precision + recall)
