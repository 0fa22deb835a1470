"""Answers to the questions of a file in SQuAD's format.

Shape letters: N windows, T tokens of the longest sequence.
"""

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadSpanLabeler, squad
from keras_fixedhead.files import write_json
from training.corpus.squad import read_questions
from training.engine.prediction_config import PredictConfig
from training.engine.preset import read_task
from training.engine.sequences import outputs_by_length
from training.question_answering.batches import WindowedQuestions


def predict(config: PredictConfig) -> dict[str, float]:
    """Writes the best answer to each question, and perhaps more of them.

    Args:
        config: What is asked.

    Returns:
        `exact_match` and `f1`, percent, of the questions that come with
        answers; nothing where none does.

    Raises:
        OSError: A file cannot be read or written.
        ValueError: The model is none that labels spans, or the file is not
            SQuAD's.
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
    best = {key: answers[0].text for key, answers in found.items()}
    if config.n_best_output is not None:
        write_json(
            config.n_best_output,
            {
                key: [answer._asdict() for answer in answers]
                for key, answers in found.items()
            },
        )
    write_json(config.output, best)
    golds = {
        question.id: [text for text, _ in question.answers]
        for question in questions
        if question.answers
    }
    if not golds:
        return {}
    measured = squad.score_answers(
        golds, {key: text for key, text in best.items() if key in golds}
    )
    return {name: float(measured[name]) for name in ("exact_match", "f1")}


def _logits(labeler, windowed, batch_size):
    """Float32 arrays `[N, T]` of starts and ends."""
    label = tf.function(
        labeler.label_packed, reduce_retracing=True, autograph=False
    )
    rows = [row for divided in windowed.windows for row in divided]
    shape = len(rows), max(windowed.lengths)
    logits = {name: np.zeros(shape, "float32") for name in ("start", "end")}

    def compute(numbers):
        chosen = [rows[number] for number in numbers]
        inputs = labeler.preprocessor.pad(
            chosen, max(len(row.token_ids) for row in chosen)
        )
        return label({name: tf.constant(x) for name, x in inputs.items()})

    for numbers, outputs in outputs_by_length(
        windowed.lengths, compute, batch_size, "answering"
    ):
        for name, x in outputs.items():
            logits[name][numbers, : x.shape[1]] = x
    return logits["start"], logits["end"]
