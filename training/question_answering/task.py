"""Question answering: where in a paragraph the answer starts and ends.

Shape letters: M windows of this replica, T tokens, L the longest sequence.
"""

import dataclasses
import hashlib
import json
import pathlib

import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadSpanLabeler,
    FixedHeadSpanLabelerPreprocessor,
    squad,
)
from training.corpus.squad import read_questions
from training.engine.encoder import (
    check_vocabulary,
    copy_encoder,
    make_encoder,
    read_start,
    read_tokenizer,
)
from training.engine.preset import preset_sha256
from training.engine.sequences import SequenceTask, in_order, losses_and_hits
from training.question_answering.batches import WindowBatches, WindowedQuestions
from training.question_answering.configs import SquadConfig


class SpanLabelingTask(SequenceTask):
    """Fine-tuning on SQuAD v1.1 as of BERT (Devlin et al. 2018, section 4.2).

    Args:
        config: The run.

    Raises:
        OSError: A file is missing.
        ValueError: A file of the data, or a value of the configuration, is
            wrong.
    """

    metrics = ("start_accuracy", "end_accuracy")

    def __init__(self, config: SquadConfig):
        self._config = config
        spans = config.spans
        self._said = []
        self._start, self._model = read_start(config.model)
        check_vocabulary(spans.vocabulary, config.model.init)
        longest = self._model.max_sequence_length
        if spans.sequence_length > longest:
            raise ValueError(
                "`sequence_length` must be at most max_sequence_length="
                f"{longest}. Received: {spans.sequence_length}"
            )
        for name in ("n_best", "max_answer_length"):
            if getattr(spans, name) < 1:
                raise ValueError(
                    f"`{name}` must be positive. "
                    f"Received: {getattr(spans, name)}"
                )
        self._preprocessor = FixedHeadSpanLabelerPreprocessor(
            read_tokenizer(self._start, spans.vocabulary, spans.lowercase),
            sequence_length=spans.sequence_length,
            document_stride=spans.document_stride,
            max_question_length=spans.max_question_length,
        )
        seed = config.training.seed
        self._training = self._read(
            "data", config.run.data, spans.training_questions, seed
        )
        self._validation = self._read(
            "validation", spans.validation, spans.validation_questions, seed
        )
        self._batches = WindowBatches(
            config.training.global_batch_size,
            self._preprocessor,
            seed,
            packed=config.run.packed,
        )

    def _read(self, argument, source, most, seed):
        """The windows of a source's questions, of some if it has more."""
        questions = read_questions(source, self._said.append)
        if most is not None and most < 1:
            name = "training" if argument == "data" else argument
            raise ValueError(
                f"`{name}_questions` must be positive or None. Received: {most}"
            )
        if most is not None and most < len(questions):
            chosen = np.random.default_rng(seed).permutation(len(questions))
            questions = [questions[i] for i in np.sort(chosen[:most])]
        if not questions:
            raise ValueError(
                f"`{argument}` {str(source)!r} must have questions with "
                "answers. Received: none"
            )
        return WindowedQuestions.of(questions, self._preprocessor, argument)

    @property
    def settings(self):
        config = self._config
        model = dataclasses.asdict(config.model)
        init = model.pop("init")
        spans = dataclasses.asdict(config.spans)
        # What they are read from may move; what is in them counts.
        for name in ("validation", "vocabulary"):
            del spans[name]
        return {
            "model": model,
            "init_sha256": init and preset_sha256(init, "init"),
            "spans": spans,
            "vocabulary_size": self._preprocessor.tokenizer.vocabulary_size(),
            "data_sha256": {
                "training": _sha256(self._training),
                "validation": _sha256(self._validation),
            },
        }

    @property
    def warnings(self):
        said = list(self._said)
        for name, windowed in (
            ("the training data", self._training),
            ("validation", self._validation),
        ):
            if cut := windowed.question_tokens_cut:
                said.append(
                    f"{cut:,} questions of {name} are cut off after "
                    f"{self._config.spans.max_question_length} tokens"
                )
            if without := windowed.without_answer:
                said.append(
                    f"{without:,} questions of {name} have their answer whole "
                    "in no window"
                )
        return said

    def build(self):
        if self._start is None:
            backbone = make_encoder(
                self._model, self._preprocessor.tokenizer.vocabulary_size()
            )
        else:
            backbone = copy_encoder(self._start.backbone, self._model)
        self.model = FixedHeadSpanLabeler(
            backbone,
            preprocessor=self._preprocessor,
            dropout=self._config.spans.head_dropout,
        )

    def training_dataset(self, context, first_step):
        return self._batches.training(self._training, context, first_step)

    def loss(self, batch, totals):
        logits = self._logits(batch, training=True)
        loss, shares = 0.0, {}
        for column, name in enumerate(("start", "end")):
            losses, hits = losses_and_hits(
                logits[name], batch["spans"][:, column]
            )
            examples = tf.cast(totals["examples"], losses.dtype)
            loss += tf.reduce_sum(losses) / examples / 2.0
            shares[f"{name}_accuracy"] = tf.reduce_sum(hits) / examples
        return loss, shares

    def _logits(self, batch, training):
        """`start` and `end`, float tensors `[M, T]`."""
        return self.model.label_packed(
            self.model_inputs(batch),
            training=training,
            fixed_size=not self._config.run.packed,
        )

    def evaluation_dataset(self, context):
        return self._batches.evaluation(self._validation, context)

    def evaluation_step(self, batch):
        logits = self._logits(batch, training=False)
        missing = (
            self._preprocessor.sequence_length - tf.shape(logits["start"])[1]
        )
        # Of one length, so that batches can be put together.
        return {
            "index": batch["index"],
            **{
                name: tf.pad(x, [[0, 0], [0, missing]])
                for name, x in logits.items()
            },
        }

    def figures(self, outputs):
        outputs = in_order(outputs)
        spans = self._config.spans
        found = self._validation.answers(
            outputs["start"],
            outputs["end"],
            spans.n_best,
            spans.max_answer_length,
        )
        measured = squad.score_answers(
            {
                question.id: [text for text, _ in question.answers]
                for question in self._validation.questions
            },
            {key: answers[0].text for key, answers in found.items()},
        )
        return {name: float(measured[name]) for name in ("exact_match", "f1")}

    def save(self, folder: pathlib.Path):
        self.model.save_to_preset(str(folder))


def _sha256(windowed):
    """The checksum of questions, contexts and answers."""
    digest = hashlib.sha256()
    for question in windowed.questions:
        digest.update(json.dumps(dataclasses.astuple(question)).encode())
    return digest.hexdigest()
