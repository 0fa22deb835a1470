"""Exported classifiers answer as the padded Keras model does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from export import services, session
from tests.export import tiny
from tests.export.services import kinds

LABELS = ["entailment", "neutral", "contradiction"]
FIRST = ["open the file", "", "é 西", "fox " * 50]
SECOND = ["read it", "fox", "", "dog " * 50]


class TestTextClassifier(kinds.KindTests):
    described = {"labels", "num_classes"}

    def new(self):
        return tiny.new_text_classifier(labels=LABELS)

    def check(self, model, ask):
        for signature, inputs, texts in (
            ("serving_default", {"text": FIRST}, FIRST),
            ("pairs", {"first": FIRST, "second": SECOND}, (FIRST, SECOND)),
        ):
            answer = ask(inputs, signature)
            logits = model(model.preprocessor(texts, y=None))
            expected = np.array(keras.ops.softmax(logits))
            np.testing.assert_allclose(
                answer["probabilities"], expected, atol=1e-5
            )
            assert [label.decode() for label in answer["label"]] == [
                LABELS[i] for i in expected.argmax(axis=-1)
            ]

    def test_two_texts_for_one(self, ask):
        with pytest.raises(session.StatusError, match="second must have the s"):
            ask({"first": FIRST, "second": SECOND[:3]}, "pairs")

    def test_the_card(self, exported):
        assert exported.card["labels"] == LABELS
        assert exported.card["num_classes"] == 3


def test_a_classifier_without_labels():
    """Names nothing, and is compared whole."""
    model = tiny.new_text_classifier(pooler=False)
    service = services.of(model, model.preprocessor)
    pairs = service.texts["pairs"]
    texts = [list(column) for column in pairs.golden.values()]
    answer = pairs.answer(*map(tf.constant, texts))
    expected = pairs.padded(*texts).outputs
    assert answer.keys() == expected.keys() == {"probabilities"}
    np.testing.assert_allclose(
        answer["probabilities"], expected["probabilities"], atol=1e-5
    )
