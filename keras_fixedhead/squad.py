"""The figures of SQuAD v1.1: exact match and F1 of answers.

The official definition (Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for
Machine Comprehension of Text", https://arxiv.org/abs/1606.05250, section 6.1,
and the evaluation script of version 1.1), number for number.
"""

import collections
import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text):
    """What of an answer counts.

    Args:
        text: str.

    Returns:
        The text in lower case, without ASCII punctuation and the articles a,
        an and the, its words joined by single spaces.
    """
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction, answers):
    """Whether a prediction is one of the answers, once both are normalized.

    Args:
        prediction: str.
        answers: list of str, at least one.

    Returns:
        1.0 or 0.0.

    Raises:
        ValueError: if there is no answer, or `answers` is a string.
    """
    prediction = normalize_answer(prediction)
    return max(
        float(prediction == normalize_answer(answer))
        for answer in _some(answers)
    )


def f1(prediction, answers):
    """The F1 of the words of a prediction with the answer it is closest to.

    The harmonic mean of precision and recall of normalized words, each as
    often as it occurs. It is 0 where no word is common, even if there is none
    on either side.

    Args:
        prediction: str.
        answers: list of str, at least one.

    Returns:
        A float from 0 to 1.

    Raises:
        ValueError: if there is no answer, or `answers` is a string.
    """
    words = normalize_answer(prediction).split()
    return max(
        _f1(words, normalize_answer(answer).split())
        for answer in _some(answers)
    )


def measure(answers, predictions):
    """Measures the predictions for a set of questions.

    Args:
        answers: dict from the id of each question to its answers, a list of
            at least one string.
        predictions: dict from ids to strings.

    Returns:
        A dictionary: `exact_match` and `f1` in percent, averaged over all
        questions, where one without prediction counts as 0; `missing`, the
        number of these; and `unknown`, the number of predictions for ids that
        are no question's, which count for nothing.

    Raises:
        ValueError: if there is no question, or one has no answer.
    """
    if not answers:
        raise ValueError(
            "`answers` must hold the answers of at least one question. "
            f"Received: {answers!r}"
        )
    matches = scores = missing = 0
    for key, texts in answers.items():
        if not texts:
            raise ValueError(
                "`answers` must hold at least one answer for each question. "
                f"Received: none for {key!r}. Leave out questions without one"
            )
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
    common = collections.Counter(words) & collections.Counter(others)
    common = sum(common.values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(others)
    return 2.0 * precision * recall / (precision + recall)
