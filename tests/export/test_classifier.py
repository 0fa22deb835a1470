"""Exported classifiers answer as the padded Keras model does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from export import checks, load, services, session
from export.checks.exported import Exported
from export.files import card, golden
from tests.export import serving, tiny

LABELS = ["entailment", "neutral", "contradiction"]
FIRST = ["open the file", "", "é 西", "fox " * 50]
SECOND = ["read it", "fox", "", "dog " * 50]


@pytest.fixture(scope="module")
def classifier():
    return tiny.new_classifier(labels=LABELS)


@pytest.fixture(scope="module")
def folder(classifier, tmp_path_factory):
    return serving.export(classifier, tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def exported(folder):
    return Exported(folder)


def check(classifier, ask):
    """Compares a served classifier with the padded Keras model."""
    for signature, inputs, texts in (
        ("serving_default", {"text": FIRST}, FIRST),
        ("pairs", {"first": FIRST, "second": SECOND}, (FIRST, SECOND)),
    ):
        answer = ask(inputs, signature)
        logits = classifier(classifier.preprocessor(texts, y=None))
        expected = np.array(keras.ops.softmax(logits))
        np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
        assert [label.decode() for label in answer["label"]] == [
            LABELS[i] for i in expected.argmax(axis=-1)
        ]


def test_equals_the_keras_model(classifier, folder):
    with serving.in_process(folder) as ask:
        check(classifier, ask)
        with pytest.raises(
            session.StatusError, match="second must have the same"
        ):
            ask({"first": FIRST, "second": SECOND[:3]}, "pairs")
    described = card.load(folder)
    assert described["labels"] == LABELS
    assert described["num_classes"] == 3
    assert "embedding_dim" not in described


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_through_a_server(classifier, folder, protocol):
    with serving.by_server(folder, protocol) as ask:
        check(classifier, ask)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ("label", lambda x: x[::-1] + b"!"),
        ("probabilities", lambda x: x + 1e-3),
    ],
)
def test_wrong_answers_are_found(exported, output, fault):
    passed, detail = serving.compare_with_others(
        exported, "serving_default", output, fault
    )
    assert not passed
    assert detail.startswith(f"serving_default: {output} is")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_fewer_bits(classifier, tmp_path, dtype):
    folder = serving.export(classifier, tmp_path, dtype=dtype)
    described = card.load(folder)
    assert described["dtype"] == dtype
    assert 0.99 < described["least_cosine_to_float32"] < 1


@pytest.mark.parametrize("suffix", ["", ".keras"])
def test_from_files(classifier, tmp_path, suffix):
    """A preset or a `.keras` file; the task, or its encoder alone."""
    source = tmp_path / f"task{suffix}"
    if suffix:
        classifier.save(source)
    else:
        classifier.save_to_preset(str(source))
    service = load.load(source)
    assert type(service.model) is type(classifier)
    assert "embedding_dim" not in service.described
    with pytest.raises(ValueError, match="for a FixedHeadTextEmbedder, rec"):
        load.load(source, embedding_dim=5)
    encoder = load.load(source, raw_encoder=True)
    assert encoder.model.name == classifier.backbone.name
    assert encoder.preprocessor.sequence_length == 37


def test_a_classifier_without_labels():
    """Names nothing, and is compared whole."""
    model = tiny.new_classifier(pooler=False)
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


def test_two_texts_for_one_are_found(exported, monkeypatch):
    monkeypatch.setattr(exported, "ask", lambda name, inputs: {})
    passed, detail = checks.run("unlike numbers", exported)
    assert not passed
    assert detail == "pairs answers instead of refusing"
