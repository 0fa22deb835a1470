"""A question and its context as sequences, and answers from logits.

Shape letters: N windows of one question, T sequence length, C context tokens.
"""

import dataclasses
import typing
from collections.abc import Sequence

import numpy as np

from keras_fixedhead.argument_checks import positive_int


class Window(typing.NamedTuple):
    """One sequence: `[CLS]` question `[SEP]` part of the context `[SEP]`.

    The part starts at `context_start` of `token_ids`, and is `token_range`,
    `(first, end)` with `end` exclusive, of the C context tokens.
    """

    token_ids: list[int]
    context_start: int
    token_range: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class ContextWindows(Sequence[Window]):
    """All sequences of one question: its N windows, at least one.

    `starts` and `ends`, exclusive, are those of context tokens in `context`.
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
        """The first and last context token that overlap an answer, if any."""
        answer_end = answer_start + len(answer_text)
        there = self.context[max(answer_start, 0) : answer_end]
        if there != answer_text:
            raise ValueError(
                f"`answer_text` must be the context's at {answer_start}, "
                f"{there!r}. Received: {answer_text!r}"
            )
        # Starts and ends never decrease.
        first = int(np.searchsorted(self.ends, answer_start, side="right"))
        last = int(np.searchsorted(self.starts, answer_end, side="left")) - 1
        return (first, last) if answer_text and first <= last else None

    def text_of(self, start_token: int, end_token: int) -> str:
        return self.context[self.starts[start_token] : self.ends[end_token]]

    @property
    def max_context(self) -> np.ndarray:
        """int array `[C]`: the first window where each token has most context.

        Context is the number of tokens on the shorter side, plus a hundredth
        of the window's length (`run_squad.py` of Devlin et al. 2018).
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
    with equal text counts. A context without tokens has the empty answer.
    """
    positive_int("n_best", n_best)
    positive_int("max_answer_length", max_answer_length)
    logits = np.array([start_logits, end_logits], np.float64)  # [2, N, T]
    count, length = len(windows), max(len(row.token_ids) for row in windows)
    if logits.shape[1:2] != (count,) or logits.shape[2:] < (length,):
        raise ValueError(
            f"`start_logits` and `end_logits` must be [{count}, T], T at least "
            f"{length}. Received: shape {logits.shape[1:]}"
        )
    if not windows.starts:
        return [Answer("", 0.0, 0, 0, 1.0)]
    scores, spans = span_scores(
        logits[0], logits[1], windows, max_answer_length
    )
    best: dict[str, tuple[float, int, int]] = {}
    for index in np.argsort(-scores, kind="stable"):
        first, last = spans[index].tolist()
        place = windows.starts[first], windows.ends[last]
        text = windows.text_of(first, last)
        best.setdefault(text, (float(scores[index]), *place))
        if len(best) == n_best:
            break
    kept = np.array([score for score, _, _ in best.values()])
    parts = np.exp(kept - kept[0])
    parts = (parts / parts.sum()).tolist()
    return [Answer(text, *best[text], part) for text, part in zip(best, parts)]


def span_scores(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    windows: ContextWindows,
    max_answer_length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[spans]` of all spans, and their tokens `[spans, 2]`."""
    max_context = windows.max_context
    scores, spans = [], []
    for number, row in enumerate(windows):
        first, end = row.token_range
        starts = first + np.flatnonzero(max_context[first:end] == number)
        # [starts, 1] and [starts, max_answer_length]
        starts = starts[:, np.newaxis]
        ends = starts + np.arange(max_answer_length)
        pairs = np.stack(np.broadcast_arrays(starts, ends), axis=-1)
        pairs = pairs[ends < end]  # [spans, 2]
        start, stop = (pairs + row.context_start - first).T
        scores.append(start_logits[number][start] + end_logits[number][stop])
        spans.append(pairs)
    return np.concatenate(scores), np.concatenate(spans)
