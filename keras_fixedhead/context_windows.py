"""A question and its context as sequences, and answers between characters.

Shape letters: N windows of one question, T sequence length, C context tokens.
"""

import dataclasses
import typing

import numpy as np


class Window(typing.NamedTuple):
    """One sequence: `[CLS]` question `[SEP]` part of the context `[SEP]`.

    Attributes:
        token_ids: list of ints, without padding.
        segment_ids: list of ints, as many: 0 up to the first `[SEP]`, then 1.
        padding_mask: list of ints, as many, all 1.
        context_start: int. Where in the sequence the context begins.
        token_range: `(first, end)`, ints. Which of the C context tokens it
            holds, `end` not included.
    """

    token_ids: list[int]
    segment_ids: list[int]
    padding_mask: list[int]
    context_start: int
    token_range: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Windows:
    """All sequences of one question; `len`, `[]` and `for` give these.

    Attributes:
        context: str. The text that the answer is in.
        starts: list of C ints. Where each context token starts in `context`.
        ends: list of C ints. Where it ends, the first place after.
        rows: tuple of N `Window`s, N at least 1.
        question_tokens_cut: int. How many tokens the question was too long.
    """

    context: str
    starts: list[int]
    ends: list[int]
    rows: tuple[Window, ...]
    question_tokens_cut: int

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def span_of(self, answer_start, answer_text):
        """The context tokens of an answer.

        Args:
            answer_start: int. Where it starts in the context.
            answer_text: str. What stands there.

        Returns:
            `(first, last)`, ints, the first and the last token that shares a
            character with it, or `None` if none does.

        Raises:
            ValueError: if the context has another text there.
        """
        answer_end = answer_start + len(answer_text)
        there = self.context[max(answer_start, 0) : answer_end]
        if there != answer_text:
            raise ValueError(
                "`answer_text` must stand in the context at `answer_start`. "
                f"Received: {answer_text!r} at {answer_start}, where "
                f"{there!r} stands"
            )
        # Neither starts nor ends ever fall.
        first = int(np.searchsorted(self.ends, answer_start, side="right"))
        last = int(np.searchsorted(self.starts, answer_end, side="left")) - 1
        return (first, last) if answer_text and first <= last else None

    def text_of(self, start_token, end_token):
        """The text from one context token to another, the last included."""
        return self.context[self.starts[start_token] : self.ends[end_token]]

    @property
    def max_context(self):
        """int array `[C]`: in which window each token has most context.

        That is, the most tokens on the side where there are fewer, and a
        hundredth of the window's length more; of equal windows the first
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
    """An answer that was found.

    Attributes:
        text: str. What stands in the context between the two places.
        score: float. The logit of its first token plus that of its last.
        start: int. Where it starts in the context.
        end: int. Where it ends, the first place after.
        probability: float. The softmax of the scores of all that were found.
    """

    text: str
    score: float
    start: int
    end: int
    probability: float


def decode(start_logits, end_logits, windows, n_best=20, max_answer_length=30):
    """The best answers to one question, over all its windows.

    As `run_squad.py` of Devlin et al. 2018: an answer lies in one window, the
    one where its first token has most context, and of spans with the same text
    the best one stands. But all spans are compared, not only those of the 20
    best first and last tokens.

    Args:
        start_logits: float array `[N, T]`, T at least the longest window.
        end_logits: float array `[N, T]`.
        windows: the `Windows` they were computed of.
        n_best: int. The most answers to return.
        max_answer_length: int. The most tokens of an answer.

    Returns:
        A list of `Answer`s, best first, at least one. Where the context has
        no tokens it is the empty one.

    Raises:
        ValueError: if logits have another shape, or an argument is not
            positive.
    """
    for name, value in (
        ("n_best", n_best),
        ("max_answer_length", max_answer_length),
    ):
        if value < 1:
            raise ValueError(
                f"`{name}` must be a positive integer. "
                f"Received: {name}={value!r}"
            )
    logits = [np.asarray(x, np.float64) for x in (start_logits, end_logits)]
    longest = max(len(row.token_ids) for row in windows)
    for name, array in zip(("start_logits", "end_logits"), logits):
        if array.ndim != 2 or not (
            len(array) == len(windows) and array.shape[1] >= longest
        ):
            raise ValueError(
                f"`{name}` must be an array of {len(windows)} rows, one of "
                f"each window, of at least {longest} numbers. "
                f"Received: shape {array.shape}"
            )
    if not windows.starts:
        return [Answer("", 0.0, 0, 0, 1.0)]
    scores, spans = _spans(*logits, windows, max_answer_length)
    found = {}
    for index in np.argsort(-scores, kind="stable"):
        first, last = spans[index].tolist()
        text = windows.text_of(first, last)
        found.setdefault(text, (float(scores[index]), first, last))
        if len(found) == n_best:
            break
    scores = np.array([score for score, _, _ in found.values()])
    parts = np.exp(scores - scores.max())
    return [
        Answer(
            text, score, windows.starts[first], windows.ends[last], float(part)
        )
        for (text, (score, first, last)), part in zip(
            found.items(), parts / parts.sum()
        )
    ]


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
