"""Question answering: where in a paragraph the answer starts and ends.

Shape letters: M windows of this replica, N windows of all questions, T tokens.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadSpanLabeler,
    FixedHeadSpanLabelerPreprocessor,
    squad,
)
from keras_fixedhead.context_windows import Answer, decode
from keras_fixedhead.files import write_json
from keras_fixedhead.progress import progress
from training.corpus.squad import Question, read_questions
from training.engine.configs import check_positive
from training.engine.global_batch import ExampleBatches, gatherer, of_length
from training.engine.preset import read_task
from training.engine.task import (
    FinetuningTask,
    in_order,
    losses_and_hits,
    mean_share,
    outputs_of_all,
)
from training.question_answering.configs import (
    Prediction,
    SpanLabelingConfig,
    SquadConfig,
)


class WindowedQuestions:
    """Questions with all windows of their contexts, N in all.

    `spans`, int32 `[N, 2]`, are the first and last token of the answer in each
    window, or 0, [CLS], if the window does not hold all of it.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        preprocessor: FixedHeadSpanLabelerPreprocessor,
        label: str = "windows",
    ):
        self.questions = list(questions)
        self.windows = []
        self.question_tokens_cut = 0
        """Number of questions that were too long."""
        self.without_answer = 0
        """Number of questions whose answer is whole in no window."""
        spans = []
        with progress(label, len(questions)) as advance:
            for question in questions:
                divided = preprocessor.windows(
                    question.question, question.context
                )
                self.windows.append(divided)
                self.question_tokens_cut += divided.question_tokens_cut > 0
                marked = _spans(question, divided)
                self.without_answer += not any(first for first, _ in marked)
                spans += marked
                advance(1)
        self.rows = [row for divided in self.windows for row in divided.rows]
        self.spans = np.array(spans, np.int32).reshape(-1, 2)

    def __len__(self):
        return len(self.rows)

    @property
    def sha256(self) -> str:
        """The checksum of questions, contexts and answers."""
        digest = hashlib.sha256()
        for question in self.questions:
            digest.update(json.dumps(dataclasses.astuple(question)).encode())
        return digest.hexdigest()

    def answers(
        self,
        logits: dict[str, np.ndarray],
        options: SpanLabelingConfig | Prediction,
    ) -> dict[str, list[Answer]]:
        """Returns each question's best answers, best first, by its `id`.

        `logits` of `start` and `end` are float arrays `[N, T]`.
        """
        found, row = {}, 0
        for question, divided in zip(self.questions, self.windows):
            rows = slice(row, row := row + len(divided))
            found[question.id] = decode(
                logits["start"][rows],
                logits["end"][rows],
                divided,
                options.n_best,
                options.max_answer_length,
            )
        return found

    def score(self, found: dict[str, list[Answer]]) -> dict[str, float]:
        """Returns `exact_match` and `f1`, percent, of the best `answers`.

        Questions that come without an answer do not count; empty if all do.
        """
        expected = {
            question.id: [answer.text for answer in question.answers]
            for question in self.questions
            if question.answers
        }
        if not expected:
            return {}
        best = {key: answers[0].text for key, answers in found.items()}
        measured = squad.score_answers(expected, best)
        return {name: float(measured[name]) for name in ("exact_match", "f1")}


def _spans(question, divided):
    """Returns the first and last token of the answer in each window."""
    places = (a for a in question.answers if a.start is not None)
    answer = next(places, None)
    span = answer and divided.span_of(answer.start, answer.text)
    spans = []
    for row in divided.rows:
        first, end = row.token_range
        offset = row.context_start - first
        if span and first <= span[0] <= span[1] < end:
            spans.append((span[0] + offset, span[1] + offset))
        else:
            spans.append((0, 0))
    return spans


class WindowBatches(ExampleBatches):
    """Batches of the model's inputs, int32 `[M, T]`, and `spans`, `[M, 2]`."""

    def reader(self, windowed: WindowedQuestions) -> Callable:
        rows = windowed.rows
        pad = self.preprocessor.tokenizer.pad_token_id
        token_ids = gatherer([row.token_ids for row in rows], pad)
        context_starts = tf.constant([row.context_start for row in rows])
        spans = tf.constant(windowed.spans)
        length = self.preprocessor.sequence_length

        def read(indices):
            ids, real = token_ids(indices)
            place = tf.range(tf.shape(real)[1])[None, :]
            second = place >= tf.gather(context_starts, indices)[:, None]
            features = {
                "token_ids": ids,
                "padding_mask": real,
                "segment_ids": tf.cast(second, tf.int32) * real,
            }
            if not self.packed:
                features = of_length(features, length, pad)
            return {**features, "spans": tf.gather(spans, indices)}

        return read


class SpanLabelingTask(FinetuningTask):
    """Fine-tuning on SQuAD v1.1 like BERT's (Devlin et al. 2018, 4.2)."""

    part = "spans"
    sources = ("validation", "vocabulary")
    batches = WindowBatches
    metrics = ("start_accuracy", "end_accuracy")
    model: FixedHeadSpanLabeler

    def __init__(self, config: SquadConfig):
        super().__init__(config)
        options = self._options
        self.warnings: list[str] = []
        self._check_lengths(3, sequence_length=options.sequence_length)
        counts = {
            "n_best": options.n_best,
            "max_answer_length": options.max_answer_length,
            "training_questions": options.training_questions,
            "validation_questions": options.validation_questions,
        }
        check_positive(**{n: x for n, x in counts.items() if x is not None})
        self._preprocessor = FixedHeadSpanLabelerPreprocessor(
            self._read_tokenizer(),
            sequence_length=options.sequence_length,
            document_stride=options.document_stride,
            max_question_length=options.max_question_length,
        )
        self._training = self._read(
            "data", config.run.data, options.training_questions
        )
        self._validation = self._read(
            "validation", options.validation, options.validation_questions
        )

    def _read(self, argument, source, most):
        """Divides a source's questions, or `most` of them, into windows."""
        questions = read_questions(source, self.warnings.append)
        if most is not None and most < len(questions):
            rng = np.random.default_rng(self.config.training.seed)
            chosen = rng.permutation(len(questions))[:most]
            questions = [questions[i] for i in np.sort(chosen)]
        if not questions:
            raise ValueError(
                f"`{argument}` {str(source)!r} must have questions with "
                "answers. Received: none"
            )
        read = WindowedQuestions(questions, self._preprocessor, argument)
        if cut := read.question_tokens_cut:
            self.warnings.append(
                f"{cut:,} questions of `{argument}` are cut off after "
                f"{self._options.max_question_length} tokens"
            )
        if without := read.without_answer:
            self.warnings.append(
                f"{without:,} questions of `{argument}` have no window that "
                "holds their whole answer"
            )
        return read

    @property
    def data_sha256(self) -> dict[str, str]:
        parts = {"training": self._training, "validation": self._validation}
        return {name: part.sha256 for name, part in parts.items()}

    @property
    def settings(self) -> dict:
        size = self._preprocessor.tokenizer.vocabulary_size()
        return {**super().settings, "vocabulary_size": size}

    def build(self) -> None:
        self.model = FixedHeadSpanLabeler(
            self._make_encoder(),
            preprocessor=self._preprocessor,
            dropout=self._options.head_dropout,
        )

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        logits = self.compute(self.model.label_packed, batch, training=True)
        loss, shares = 0.0, {}
        for column, name in enumerate(("start", "end")):
            losses, hits = losses_and_hits(
                logits[name], batch["spans"][:, column]
            )
            loss += mean_share(losses, totals["examples"]) / 2.0
            shares[f"{name}_accuracy"] = mean_share(hits, totals["examples"])
        return loss, shares

    def evaluation_step(self, batch: dict) -> dict[str, tf.Tensor]:
        outputs = {"index": batch["index"]}
        found = self.compute(self.model.label_packed, batch)
        for name, logits in found.items():
            # All batches need one length to be concatenated.
            missing = self._preprocessor.sequence_length - tf.shape(logits)[1]
            outputs[name] = tf.pad(logits, [[0, 0], [0, missing]])
        return outputs

    def figures(self, outputs: dict) -> dict[str, float]:
        found = self._validation.answers(in_order(outputs), self._options)
        return self._validation.score(found)


def predict(config: Prediction) -> dict[str, float]:
    """Writes the best answers, and returns their `score`."""
    labeler = read_task(config.model, "model", FixedHeadSpanLabeler)
    questions = read_questions(config.input, answered=False)
    if not questions:
        raise ValueError(
            f"`input` {config.input!r} must have a question. Received: none"
        )
    windowed = WindowedQuestions(questions, labeler.preprocessor, "reading")
    lengths = [len(row.token_ids) for row in windowed.rows]
    logits = outputs_of_all(
        labeler.label_packed,
        lambda numbers: labeler.preprocessor.pad(
            [windowed.rows[number] for number in numbers],
            max(lengths[number] for number in numbers),
        ),
        lengths,
        config.batch_size,
        "answering",
    )
    found = windowed.answers(logits, config)
    if config.n_best_output is not None:
        write_json(
            config.n_best_output,
            {
                key: [answer._asdict() for answer in answers]
                for key, answers in found.items()
            },
        )
    best = {key: answers[0].text for key, answers in found.items()}
    write_json(config.output, best)
    return windowed.score(found)
