"""Exported classifiers answer as the padded Keras model does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from export import checks, services, session
from export.files import card, golden
from tests.export import serving, tiny
from tests.export.services import kinds

LABELS = ["entailment", "neutral", "contradiction"]
FIRST = ["open the file", "", "é 西", "fox " * 50]
SECOND = ["read it", "fox", "", "dog " * 50]


class TestTextClassifier(kinds.KindTests):
    described = {"labels", "num_classes"}
    faults = (
        ("serving_default", "label", lambda x: x[::-1] + b"!"),
        ("serving_default", "probabilities", lambda x: x + 1e-3),
    )

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

    def test_equals_the_keras_model(self, model, folder):
        with serving.in_process(folder) as ask:
            self.check(model, ask)
            with pytest.raises(
                session.StatusError, match="second must have the same"
            ):
                ask({"first": FIRST, "second": SECOND[:3]}, "pairs")
        described = card.load(folder)
        assert described["labels"] == LABELS
        assert described["num_classes"] == 3
        assert "embedding_dim" not in described

    def test_two_texts_for_one_are_found(self, exported, monkeypatch):
        monkeypatch.setattr(exported, "ask", lambda name, inputs: {})
        passed, detail = checks.run("unlike numbers", exported)
        assert not passed
        assert detail == "pairs answers instead of refusing"


def test_a_classifier_without_labels():
    """Names nothing, and is compared whole."""
    model = tiny.new_text_classifier(pooler=False)
    service = services.of(model, model.preprocessor)
    cases = services.golden_cases(service)
    assert len(cases["pairs"].inputs["second"]) == len(golden.TEXTS)
    assert cases["pairs"].outputs.keys() == {"probabilities"}
    served = services.signatures(service)
    for name, (inputs, expected, _) in cases.items():
        answer = served[name](*map(tf.constant, inputs.values()))
        assert answer.keys() == expected.keys()
        np.testing.assert_allclose(
            answer["probabilities"], expected["probabilities"], atol=1e-5
        )
