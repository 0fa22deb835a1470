"""Questions and windows of their contexts as batches of tokens.

Shape letters: M windows of one replica, N windows, T tokens.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadSpanLabelerPreprocessor, squad
from keras_fixedhead.context_windows import (
    Answer,
    ContextWindows,
    Window,
    decode,
)
from keras_fixedhead.progress import progress
from training.corpus.squad import Question
from training.engine.global_batch import ExampleBatches, of_length


@dataclasses.dataclass(frozen=True)
class WindowedQuestions:
    """Questions with all windows of their contexts, N in all.

    `spans`, int32 `[N, 2]`, are the first and last token of the answer in each
    window, or 0, [CLS], if the window does not hold all of it.
    """

    questions: list[Question]
    windows: list[ContextWindows]
    spans: np.ndarray

    @classmethod
    def of(
        cls,
        questions: Sequence[Question],
        preprocessor: FixedHeadSpanLabelerPreprocessor,
        label: str = "windows",
    ) -> "WindowedQuestions":
        """Divides contexts into windows and marks one answer per question.

        The progress bar shows `label`.
        """
        windows: list[ContextWindows] = []
        spans: list[tuple[int, int]] = []
        with progress(label, len(questions)) as advance:
            for question in questions:
                divided = preprocessor.windows(
                    question.question, question.context
                )
                windows.append(divided)
                spans.extend(_spans(question, divided))
                advance(1)
        marked = np.array(spans, np.int32).reshape(-1, 2)
        return cls(list(questions), windows, marked)

    @functools.cached_property
    def rows(self) -> list[Window]:
        """The windows of all questions."""
        return [row for divided in self.windows for row in divided.rows]

    def __len__(self):
        return len(self.rows)

    @property
    def question_tokens_cut(self) -> int:
        """Number of questions that were too long."""
        return sum(divided.question_tokens_cut > 0 for divided in self.windows)

    @property
    def without_answer(self) -> int:
        """Number of questions whose answer is whole in no window."""
        firsts = np.cumsum([0, *map(len, self.windows[:-1])])
        marked = np.add.reduceat(self.spans[:, 0] > 0, firsts, dtype=np.int64)
        return int((marked == 0).sum())

    @property
    def sha256(self) -> str:
        """The checksum of questions, contexts and answers."""
        digest = hashlib.sha256()
        for question in self.questions:
            digest.update(json.dumps(dataclasses.astuple(question)).encode())
        return digest.hexdigest()

    def answers(
        self, start: np.ndarray, end: np.ndarray, n_best: int, longest: int
    ) -> dict[str, list[Answer]]:
        """Returns each question's best answers, best first, by its `id`.

        Logits are float arrays `[N, T]`; answers have up to `longest` tokens.
        """
        found, row = {}, 0
        for question, divided in zip(self.questions, self.windows):
            rows = slice(row, row + len(divided))
            row = rows.stop
            found[question.id] = decode(
                start[rows], end[rows], divided, n_best, longest
            )
        return found

    def score(self, best: dict[str, str]) -> dict[str, float]:
        """Returns `exact_match` and `f1`, percent, of answers by `id`.

        Questions that come without an answer do not count; empty if all do.
        """
        expected = {
            question.id: [answer.text for answer in question.answers]
            for question in self.questions
            if question.answers
        }
        if not expected:
            return {}
        measured = squad.score_answers(expected, best)
        return {name: float(measured[name]) for name in ("exact_match", "f1")}


class WindowBatches(ExampleBatches):
    """Batches of the model's inputs, int32 `[M, T]`, and `spans`, `[M, 2]`."""

    def reader(self, windowed: WindowedQuestions) -> Callable:
        ids = itertools.chain.from_iterable(r.token_ids for r in windowed.rows)
        token_ids = tf.RaggedTensor.from_row_lengths(
            np.fromiter(ids, np.int32),
            [len(row.token_ids) for row in windowed.rows],
        )
        context_starts = tf.constant(
            [row.context_start for row in windowed.rows]
        )
        spans = tf.constant(windowed.spans)
        length = self.preprocessor.sequence_length
        pad = self.preprocessor.tokenizer.pad_token_id

        def read(indices):
            ids = tf.gather(token_ids, indices)
            real = tf.ones_like(ids).to_tensor()
            place = tf.range(tf.shape(real)[1])[None, :]
            second = place >= tf.gather(context_starts, indices)[:, None]
            features = {
                "token_ids": ids.to_tensor(default_value=pad),
                "padding_mask": real,
                "segment_ids": tf.cast(second, tf.int32) * real,
            }
            if not self.packed:
                features = of_length(features, length, pad)
            return {**features, "spans": tf.gather(spans, indices)}

        return read


def _spans(
    question: Question, divided: ContextWindows
) -> Iterator[tuple[int, int]]:
    """Yields the first and last token of the answer in each window."""
    span = None
    for answer in question.answers:
        if answer.start is not None:
            span = divided.span_of(answer.start, answer.text)
            break
    for row in divided.rows:
        first, end = row.token_range
        if span is None or not first <= span[0] <= span[1] < end:
            yield 0, 0
        else:
            offset = row.context_start - first
            yield span[0] + offset, span[1] + offset
