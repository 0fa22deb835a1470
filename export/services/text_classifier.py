"""A text classifier, served.

Shape letters: B batch, C classes.
"""

import numpy as np
import tensorflow as tf
from keras import ops

import keras_fixedhead
from export import session
from export.files import golden
from export.services import service


@service.serves(keras_fixedhead.FixedHeadTextClassifier)
def serve(
    classifier: keras_fixedhead.FixedHeadTextClassifier,
    preprocessor: keras_fixedhead.FixedHeadTextClassifierPreprocessor,
) -> service.Service:
    """Serves `probabilities`, float32 `[B, C]`, and, if the model has labels,
    `label`, string `[B]`, the most probable class.

    `serving_default` is of `text`, string `[B]`; `pairs` of `first` and
    `second`, string `[B]` each.
    """
    labels = classifier.labels

    def packed(inputs):
        probabilities = ops.softmax(classifier.classify_packed(inputs))
        shape = [None, classifier.num_classes]
        outputs = {"probabilities": tf.ensure_shape(probabilities, shape)}
        if labels:
            best = tf.argmax(probabilities, axis=-1)
            outputs["label"] = tf.gather(tf.constant(labels), best)
        return outputs

    def padded(inputs):
        probabilities = {"probabilities": ops.softmax(classifier(inputs))}
        outputs = service.to_numpy(probabilities)
        if not labels:
            return service.Answers(outputs)
        ordered = np.sort(outputs["probabilities"], axis=-1)
        best = outputs["probabilities"].argmax(axis=-1)
        outputs["label"] = np.array(labels)[best]
        return service.Answers(outputs, ordered[:, -1] - ordered[:, -2])

    def answer(*texts):
        return packed(preprocessor.pad_to_longest(*texts))

    def tokenized(*texts):
        # Without `y` a tuple of two is taken for inputs and labels.
        texts = texts if len(texts) > 1 else texts[0]
        return service.to_numpy(preprocessor(texts, y=None))

    def expected(*texts):
        return padded(golden.trimmed(tokenized(*texts)))

    pairs = {"first": golden.TEXTS, "second": golden.TEXTS[::-1]}
    asked = {session.DEFAULT_SIGNATURE: {"text": golden.TEXTS}, "pairs": pairs}
    return service.Service(
        model=classifier,
        preprocessor=preprocessor,
        texts={
            name: service.TextSignature(texts, answer, expected)
            for name, texts in asked.items()
        },
        golden_ids=lambda: tokenized(*map(list, pairs.values())),
        packed=packed,
        padded=padded,
        tokenize=lambda texts: preprocessor.pad_to_longest(texts, texts),
        described={"num_classes": classifier.num_classes, "labels": labels},
    )
