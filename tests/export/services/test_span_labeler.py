"""Exported span labelers answer as the padded Keras model does."""

import numpy as np

from export import services
from export.files import golden
from keras_fixedhead import context_windows
from tests.export import tiny
from tests.export.services import kinds

LONG = " ".join(golden.TEXTS[:10])
QUESTIONS = ["open the file", "", "fox " * 50, "σ", "a"]
CONTEXTS = ["read it, line by line.", LONG, LONG, "", "西 é 🦊"]


def change_a_logit(logits):
    """The value at padding does not hide a difference elsewhere."""
    logits[0, 3] += 1e-3
    return logits


class TestSpanLabeler(kinds.KindTests):
    described = {
        *("document_stride", "max_question_length"),
        *("max_windows", "max_answer_length"),
    }
    faults = (
        ("serving_default", "answer", lambda x: x + b"!"),
        ("serving_default", "end", lambda x: x + 1),
        ("serving_default", "score", lambda x: x + 1e-3),
        ("from_token_ids", "start", change_a_logit),
    )

    def new(self):
        return tiny.new_labeler()

    def check(self, model, ask):
        preprocessor = model.preprocessor
        answers = ask({"question": QUESTIONS, "context": CONTEXTS})
        for number, context in enumerate(CONTEXTS):
            windows = preprocessor.windows(QUESTIONS[number], context)
            logits = model(preprocessor.pad(windows))
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
        for name, expected in model(inputs).items():
            np.testing.assert_allclose(logits[name], expected, atol=1e-5)

    def test_what_the_gate_asks(self, exported):
        assert exported.card["document_stride"] == 5
        assert exported.card["max_answer_length"] == 30
        # It was clear, and not of empty contexts alone.
        case = exported.golden["serving_default"]
        assert len(set(case.outputs["answer"][case.decided])) > 5


def test_golden_logits_at_padding_are_the_model_s():
    """Rows of many batches: of the longest one, and of shorter ones."""
    labeler = tiny.new_labeler(vocabulary_size=9_000, max_sequence_length=160)
    service = services.of(labeler, labeler.preprocessor)
    case = services.golden_cases(service)["from_token_ids"]
    assert len(case.decided) > 64
    padding = case.inputs["padding_mask"] == 0
    assert padding[32:64].any(axis=1).all()
    for logits in case.outputs.values():
        np.testing.assert_array_equal(logits == golden.PADDING, padding)
