"""Answers to the questions of a file in SQuAD's format."""

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadSpanLabeler
from keras_fixedhead.files import write_json
from training.corpus.squad import read_questions
from training.engine.configs import PredictConfig
from training.engine.preset import read_task
from training.engine.task import outputs_by_length
from training.question_answering.batches import WindowedQuestions


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
