"""Exported span labelers answer as the padded Keras model does."""

import numpy as np
import pytest

from export import load
from export.checks.exported import Exported
from export.files import card, golden
from keras_fixedhead import context_windows
from tests.export import serving, tiny

LONG = " ".join(golden.TEXTS[:10])
QUESTIONS = ["open the file", "", "fox " * 50, "σ", "a"]
CONTEXTS = ["read it, line by line.", LONG, LONG, "", "西 é 🦊"]


@pytest.fixture(scope="module")
def labeler():
    return tiny.new_labeler()


@pytest.fixture(scope="module")
def folder(labeler, tmp_path_factory):
    return serving.export(labeler, tmp_path_factory.mktemp("labeler"))


@pytest.fixture(scope="module")
def exported(folder):
    return Exported(folder)


def check(labeler, ask):
    """Compares a served span labeler with the padded Keras model."""
    preprocessor = labeler.preprocessor
    answers = ask({"question": QUESTIONS, "context": CONTEXTS})
    for number, context in enumerate(CONTEXTS):
        windows = preprocessor.windows(QUESTIONS[number], context)
        logits = labeler(preprocessor.pad(windows))
        best = context_windows.decode(
            np.array(logits["start"]), np.array(logits["end"]), windows
        )[0]
        np.testing.assert_allclose(
            answers["score"][number], best.score, atol=1e-4
        )
        start, end = answers["start"][number], answers["end"][number]
        answer = context.encode()[start:end]
        assert answer == answers["answer"][number]
        assert best.text in answer.decode()
    assert len(preprocessor.windows(QUESTIONS[1], LONG)) > 3
    inputs = preprocessor.pad(preprocessor.windows("a", LONG)[:3])
    logits = ask(inputs, "from_token_ids")
    for name, expected in labeler(inputs).items():
        np.testing.assert_allclose(logits[name], expected, atol=1e-5)


def test_equals_the_keras_model(labeler, folder):
    with serving.in_process(folder) as ask:
        check(labeler, ask)
    described = card.load(folder)
    assert described["document_stride"] == 5
    assert described["max_answer_length"] == 30
    # What the gate asked was clear, and not of empty contexts alone.
    case = golden.load(folder).cases["serving_default"]
    assert len(set(case.outputs["answer"][case.decided])) > 5


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_through_a_server(labeler, folder, protocol):
    with serving.by_server(folder, protocol) as ask:
        check(labeler, ask)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ("answer", lambda x: x + b"!"),
        ("end", lambda x: x + 1),
        ("score", lambda x: x + 1e-3),
    ],
)
def test_wrong_answers_are_found(exported, output, fault):
    passed, detail = serving.compare_with_others(
        exported, "serving_default", output, fault
    )
    assert not passed
    assert detail.startswith(f"serving_default: {output} is")


def test_wrong_logits_are_found(exported):
    """The value at padding does not hide a difference elsewhere."""

    def change(logits):
        logits[0, 3] += 1e-3
        return logits

    passed, detail = serving.compare_with_others(
        exported, "from_token_ids", "start", change
    )
    assert not passed
    assert detail.startswith("from_token_ids: start is")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_fewer_bits(labeler, tmp_path, dtype):
    folder = serving.export(labeler, tmp_path, dtype=dtype)
    described = card.load(folder)
    assert described["dtype"] == dtype
    assert 0.99 < described["least_cosine_to_float32"] < 1


@pytest.mark.parametrize("suffix", ["", ".keras"])
def test_from_files(labeler, tmp_path, suffix):
    """A preset or a `.keras` file; the task, or its encoder alone."""
    source = tmp_path / f"task{suffix}"
    if suffix:
        labeler.save(source)
    else:
        labeler.save_to_preset(str(source))
    service = load.load(source)
    assert type(service.model) is type(labeler)
    assert "embedding_dim" not in service.described
    with pytest.raises(ValueError, match="for a FixedHeadTextEmbedder, rec"):
        load.load(source, embedding_dim=5)
    encoder = load.load(source, raw_encoder=True)
    assert encoder.model.name == labeler.backbone.name
    assert encoder.preprocessor.sequence_length == 37
