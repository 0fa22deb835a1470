"""The class of each text, or pair of texts, of a file.

Shape letters: N examples, C classes.
"""

import json

import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadTextClassifier
from keras_fixedhead.files import replaced
from training.corpus.labelled import read_rows
from training.engine.prediction_config import PredictConfig
from training.engine.preset import read_task
from training.engine.sequences import outputs_by_length


def predict(config: PredictConfig) -> dict[str, float]:
    """Writes a line for each example: its label and all probabilities.

    Args:
        config: What is asked.

    Returns:
        `accuracy`, a share of the examples that come with a label, and
        `examples`, how many these are; nothing where none does.

    Raises:
        OSError: A file cannot be read or written.
        ValueError: The model is no classifier, or the file is not as
            described.
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
    with replaced(config.output) as partial:
        with open(partial, "w", encoding="utf-8") as lines:
            for label, numbers in zip(found, probabilities.tolist()):
                record = {
                    "label": label,
                    "probabilities": dict(zip(names, numbers)),
                }
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
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
    """Float32 array `[N, C]`."""
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
