"""Question answering: where in a paragraph the answer starts and ends.

Shape letters: M windows of this replica, T tokens.
"""

import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadSpanLabeler,
    FixedHeadSpanLabelerPreprocessor,
)
from keras_fixedhead.files import write_json
from training.corpus.squad import read_questions
from training.engine.configs import PredictConfig, check_positive
from training.engine.preset import read_task
from training.engine.task import (
    FinetuningTask,
    in_order,
    losses_and_hits,
    mean_share,
    outputs_by_length,
)
from training.question_answering.batches import WindowBatches, WindowedQuestions
from training.question_answering.configs import SquadConfig


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
        check_positive(
            n_best=options.n_best, max_answer_length=options.max_answer_length
        )
        self._preprocessor = FixedHeadSpanLabelerPreprocessor(
            self._read_tokenizer(),
            sequence_length=options.sequence_length,
            document_stride=options.document_stride,
            max_question_length=options.max_question_length,
        )
        for name in ("training_questions", "validation_questions"):
            if (count := getattr(options, name)) is not None:
                check_positive(**{name: count})
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
        read = WindowedQuestions.of(questions, self._preprocessor, argument)
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
        return {
            "training": self._training.sha256,
            "validation": self._validation.sha256,
        }

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
        outputs = in_order(outputs)
        found = self._validation.answers(
            outputs["start"],
            outputs["end"],
            self._options.n_best,
            self._options.max_answer_length,
        )
        return self._validation.score(
            {key: answers[0].text for key, answers in found.items()}
        )


def predict(config: PredictConfig) -> dict[str, float]:
    """Writes the best answers; returns `exact_match` and `f1`, in percent.

    These are of the questions that come with answers; empty if none does.
    """
    labeler = read_task(config.model, "model", FixedHeadSpanLabeler)
    questions = read_questions(config.input, answered=False)
    if not questions:
        raise ValueError(
            f"`input` {config.input!r} must have a question. Received: none"
        )
    windowed = WindowedQuestions.of(questions, labeler.preprocessor, "reading")
    start, end = _logits(labeler, windowed, config.batch_size)
    found = windowed.answers(
        start, end, config.n_best, config.max_answer_length
    )
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
    return windowed.score(best)


def _logits(labeler, windowed, batch_size):
    """Returns the logits of starts and ends, float32 `[windows, tokens]`."""
    label = tf.function(
        labeler.label_packed, reduce_retracing=True, autograph=False
    )
    rows = windowed.rows
    lengths = [len(row.token_ids) for row in rows]
    shape = len(rows), max(lengths)
    logits = {name: np.zeros(shape, "float32") for name in ("start", "end")}

    def compute(numbers):
        chosen = [rows[number] for number in numbers]
        inputs = labeler.preprocessor.pad(
            chosen, max(len(row.token_ids) for row in chosen)
        )
        return label({name: tf.constant(x) for name, x in inputs.items()})

    for numbers, outputs in outputs_by_length(
        lengths, compute, batch_size, "answering"
    ):
        for name, x in outputs.items():
            logits[name][numbers, : x.shape[1]] = x
    return logits["start"], logits["end"]
