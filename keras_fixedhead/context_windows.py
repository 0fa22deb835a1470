"""A question and its context as sequences, and answers from logits.

Shape letters: N windows of one question, T sequence length, C context tokens.
"""

import dataclasses
import typing
from collections.abc import Sequence

import numpy as np

from keras_fixedhead.attention_checks import positive_int


class Window(typing.NamedTuple):
    """One sequence: `[CLS]` question `[SEP]` part of the context `[SEP]`.

    The lists have no padding. The part starts at `context_start` in the
    sequence, and is `token_range`, `(first, end)` with `end` exclusive, of
    the C context tokens.
    """

    token_ids: list[int]
    segment_ids: list[int]
    padding_mask: list[int]
    context_start: int
    token_range: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class ContextWindows(Sequence[Window]):
    """All sequences of one question: its N windows, at least one.

    `starts` and `ends`, exclusive, are those of the C context tokens in
    `context`, the text that contains the answer; `question_tokens_cut` is the
    number of truncated tokens of the question.
    """

    context: str
    starts: list[int]
    ends: list[int]
    rows: tuple[Window, ...]
    question_tokens_cut: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def span_of(
        self, answer_start: int, answer_text: str
    ) -> tuple[int, int] | None:
        """The first and the last context token that overlap an answer.

        `answer_text` must stand in the context at `answer_start`. Returns
        `None` if no token overlaps it.
        """
        answer_end = answer_start + len(answer_text)
        there = self.context[max(answer_start, 0) : answer_end]
        if there != answer_text:
            raise ValueError(
                "`answer_text` must stand in the context at `answer_start`. "
                f"Received: {answer_text!r} at {answer_start}, where "
                f"{there!r} stands"
            )
        # Starts and ends never decrease.
        first = int(np.searchsorted(self.ends, answer_start, side="right"))
        last = int(np.searchsorted(self.starts, answer_end, side="left")) - 1
        return (first, last) if answer_text and first <= last else None

    def text_of(self, start_token: int, end_token: int) -> str:
        """The text from one context token to another, inclusive."""
        return self.context[self.starts[start_token] : self.ends[end_token]]

    @property
    def max_context(self) -> np.ndarray:
        """int array `[C]`: the window in which each token has most context.

        Context is the number of tokens on the shorter side, plus a hundredth
        of the window's length; the first of equal windows wins
        (`run_squad.py` of Devlin et al. 2018).
        """
        best = np.full(len(self.starts), -1.0)
        window = np.zeros(len(self.starts), np.int64)
        for number, row in enumerate(self.rows):
            first, end = row.token_range
            length = end - first
            left = np.arange(length)
            score = np.minimum(left, left[::-1]) + 0.01 * length
            better = score > best[first:end]
            best[first:end][better] = score[better]
            window[first:end][better] = number
        return window


class Answer(typing.NamedTuple):
    """An answer: its text, and its range of characters in the context."""

    text: str
    score: float  # the logit of the first token plus that of the last
    start: int
    end: int
    probability: float  # the softmax of the scores of all returned answers


def decode(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    windows: ContextWindows,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> list[Answer]:
    """The best answers to one question over all its windows, best first.

    Takes logits `[N, T]`, T at least the longest window; returns at most
    `n_best` answers of at most `max_answer_length` tokens.

    As in `run_squad.py` of Devlin et al. 2018, an answer is found in the
    window where its first token has most context, and only the best of spans
    with equal text counts. But all spans are compared, not only those of the
    20 best first and last tokens. A context without tokens has the empty
    answer.
    """
    positive_int("n_best", n_best)
    positive_int("max_answer_length", max_answer_length)
    logits = [np.asarray(x, np.float64) for x in (start_logits, end_logits)]
    longest = max(len(row.token_ids) for row in windows)
    for name, array in zip(("start_logits", "end_logits"), logits):
        if array.ndim != 2 or not (
            len(array) == len(windows) and array.shape[1] >= longest
        ):
            raise ValueError(
                f"`{name}` must be an array of {len(windows)} rows, one for "
                f"each window, of at least {longest} numbers. "
                f"Received: shape {array.shape}"
            )
    if not windows.starts:
        return [Answer("", 0.0, 0, 0, 1.0)]
    scores, spans = _spans(logits[0], logits[1], windows, max_answer_length)
    found: dict[str, tuple[float, int, int]] = {}
    for index in np.argsort(-scores, kind="stable"):
        first, last = spans[index].tolist()
        text = windows.text_of(first, last)
        found.setdefault(text, (float(scores[index]), first, last))
        if len(found) == n_best:
            break
    scores = np.array([score for score, _, _ in found.values()])
    parts = np.exp(scores - scores.max())
    answers = []
    for text, part in zip(found, parts / parts.sum()):
        score, first, last = found[text]
        start, end = windows.starts[first], windows.ends[last]
        answers.append(Answer(text, score, start, end, float(part)))
    return answers


def _spans(start_logits, end_logits, windows, max_answer_length):
    """Scores `[spans]` of all spans, and their tokens `[spans, 2]`."""
    max_context = windows.max_context
    scores, spans = [], []
    for number, row in enumerate(windows):
        first, end = row.token_range
        starts = np.arange(first, end)
        starts = starts[max_context[first:end] == number]
        # [starts, 1] and [starts, max_answer_length]
        starts = starts[:, np.newaxis]
        ends = starts + np.arange(max_answer_length)
        inside = ends < end
        offset = row.context_start - first
        length = start_logits.shape[1]
        score = (
            start_logits[number][starts + offset]
            + (end_logits[number][np.minimum(ends + offset, length - 1)])
        )
        scores.append(score[inside])
        pairs = np.stack(np.broadcast_arrays(starts, ends), axis=-1)
        spans.append(pairs[inside])
    return np.concatenate(scores), np.concatenate(spans)
