"""Questions and windows of their contexts as batches of tokens.

Shape letters: M windows of one replica, N windows, T tokens.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadSpanLabelerPreprocessor
from keras_fixedhead.context_windows import Answer, ContextWindows, decode
from keras_fixedhead.progress import progress
from training.corpus.squad import Question
from training.corpus.texts import of_length
from training.engine.global_batch import ExampleBatches


@dataclasses.dataclass(frozen=True)
class WindowedQuestions:
    """Questions with all windows of their contexts.

    Attributes:
        questions: List of `Question`s.
        windows: For each question its `ContextWindows`; N in all.
        token_ids: int32 array, the tokens of all windows end to end.
        lengths: int64 array `[N]`, how many each has.
        context_starts: int32 array `[N]`, where in each the context begins.
        spans: int32 array `[N, 2]`, the first and last token of the answer in
            each window; 0, [CLS], where it is not whole in it.
    """

    questions: list[Question]
    windows: list[ContextWindows]
    token_ids: np.ndarray
    lengths: np.ndarray
    context_starts: np.ndarray
    spans: np.ndarray

    @classmethod
    def of(
        cls,
        questions: Sequence[Question],
        preprocessor: FixedHeadSpanLabelerPreprocessor,
        label: str = "windows",
    ) -> "WindowedQuestions":
        """Divides the contexts of questions, an answer to each marked.

        Args:
            questions: Those of one context are best next to each other.
            preprocessor: Tokenizes and divides.
            label: What a progress bar on the terminal says.
        """
        windows, spans = [], []
        with progress(label, len(questions)) as advance:
            for question in questions:
                divided = preprocessor.windows(
                    question.question, question.context
                )
                windows.append(divided)
                spans.extend(_spans(question, divided))
                advance(1)
        rows = [row for divided in windows for row in divided]
        lengths = [len(row.token_ids) for row in rows]
        return cls(
            list(questions),
            windows,
            np.fromiter(
                itertools.chain.from_iterable(row.token_ids for row in rows),
                np.int32,
                sum(lengths),
            ),
            np.array(lengths, np.int64),
            np.array([row.context_start for row in rows], np.int32),
            np.array(spans, np.int32).reshape(-1, 2),
        )

    def __len__(self):
        return len(self.lengths)

    @property
    def question_tokens_cut(self) -> int:
        """How many questions were too long."""
        return sum(divided.question_tokens_cut > 0 for divided in self.windows)

    @property
    def without_answer(self) -> int:
        """How many questions have their answer whole in no window."""
        firsts = np.cumsum([0, *map(len, self.windows[:-1])])
        marked = np.add.reduceat(self.spans[:, 0] > 0, firsts, dtype=np.int64)
        return int((marked == 0).sum())

    def answers(
        self, start: np.ndarray, end: np.ndarray, n_best: int, longest: int
    ) -> dict[str, list[Answer]]:
        """The best answers to each question, by its `id`, best first.

        Args:
            start: Float array `[N, T]`, logits.
            end: Float array `[N, T]`.
            n_best: The most answers to a question.
            longest: The most tokens of an answer.
        """
        found, row = {}, 0
        for question, divided in zip(self.questions, self.windows):
            rows = slice(row, row + len(divided))
            row = rows.stop
            found[question.id] = decode(
                start[rows], end[rows], divided, n_best, longest
            )
        return found


class WindowBatches(ExampleBatches):
    """Batches of windows.

    Of `WindowedQuestions`, whose windows have numbers from first to last;
    each batch has `token_ids`, `padding_mask` and `segment_ids`, int32
    `[M, T]`, and `spans`, int32 `[M, 2]`.
    """

    def reader(self, windowed: WindowedQuestions):
        rows = tf.RaggedTensor.from_row_lengths(
            windowed.token_ids, windowed.lengths
        )
        context_starts = tf.constant(windowed.context_starts)
        spans = tf.constant(windowed.spans)
        length = self.preprocessor.sequence_length
        pad = self.preprocessor.tokenizer.pad_token_id

        def read(indices):
            ids = tf.gather(rows, indices)
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


def _spans(question, divided):
    """Where in each window its answer is, pairs of integers."""
    span = None
    for answer in question.answers:
        if answer.start is not None:
            span = divided.span_of(answer.start, answer.text)
            break
    for row in divided:
        first, end = row.token_range
        if span is None or not first <= span[0] <= span[1] < end:
            yield 0, 0
        else:
            offset = row.context_start - first
            yield span[0] + offset, span[1] + offset
