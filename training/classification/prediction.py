"""The class of each text, or pair of texts, of a file."""

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadTextClassifier
from keras_fixedhead.beir import write_records
from keras_fixedhead.files import replaced
from training.corpus.texts import read_rows
from training.engine.configs import PredictConfig
from training.engine.preset import read_task
from training.engine.task import outputs_by_length


def predict(config: PredictConfig) -> dict[str, float]:
    """Writes a line per example: its label and all probabilities.

    Returns `accuracy`, a fraction of the examples that come with a label, and
    `examples`, their number; empty if none does.
    """
    classifier = read_task(config.model, "model", FixedHeadTextClassifier)
    rows = list(read_rows(config.input, config.columns, not config.unlabelled))
    if not rows:
        raise ValueError(
            f"`input` {config.input!r} must have an example. Received: none"
        )
    names = classifier.labels or [
        str(number) for number in range(classifier.num_classes)
    ]
    probabilities = _probabilities(
        classifier, [row.texts for row in rows], config.batch_size
    )
    found = [names[number] for number in probabilities.argmax(axis=-1)]
    records = [
        {"label": label, "probabilities": dict(zip(names, numbers))}
        for label, numbers in zip(found, probabilities.tolist())
    ]
    with replaced(config.output) as partial:
        write_records(partial, records)
    right = [
        row.label == label
        # Numbers may stand for names, as in training.
        or row.label == str(names.index(label))
        for row, label in zip(rows, found)
        if row.label is not None
    ]
    if not right:
        return {}
    return {"accuracy": float(np.mean(right)), "examples": len(right)}


def _probabilities(classifier, texts, batch_size):
    """Returns a float32 array `[examples, classes]`."""
    classify = tf.function(
        lambda inputs: tf.nn.softmax(classifier.classify_packed(inputs)),
        reduce_retracing=True,
        autograph=False,
    )
    found = np.empty((len(texts), classifier.num_classes), "float32")

    def compute(numbers):
        columns = zip(*(texts[number] for number in numbers))
        inputs = classifier.preprocessor.pad_to_longest(
            *(tf.constant(column) for column in columns)
        )
        return {"probabilities": classify(inputs)}

    lengths = [sum(map(len, row)) for row in texts]
    for numbers, outputs in outputs_by_length(
        lengths, compute, batch_size, "classifying"
    ):
        found[numbers] = outputs["probabilities"]
    return found
