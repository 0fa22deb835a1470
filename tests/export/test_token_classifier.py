"""Exported token classifiers answer as the padded Keras model does."""

import keras
import numpy as np
import pytest

from export import load, session
from export.checks.exported import Exported
from export.files import card
from tests.export import serving, tiny

LABELS = ["B-person", "I-person", "O"]
TEXTS = [
    "open the file, (quick)!",
    "",
    "é西\u200b e\u0301sum  ##dog\u00a0the",
    "😀 the\tfox\r\n" * 20,
]


@pytest.fixture(scope="module")
def classifier():
    return tiny.new_token_classifier(labels=LABELS)


@pytest.fixture(scope="module")
def folder(classifier, tmp_path_factory):
    return serving.export(classifier, tmp_path_factory.mktemp("tokens"))


def words(tokenizer, text):
    """The characters of each word, and its number of tokens, by a scan of the
    tokens: those that continue a word begin with ##."""
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    found = []
    for token, start, end in zip(ids, starts, ends):
        if tokenizer.id_to_token(token).startswith("##"):
            found[-1] = (found[-1][0], end, found[-1][2] + 1)
        else:
            found.append((start, end, 1))
    return found


def check(classifier, ask):
    answer = ask({"text": TEXTS}, "serving_default")
    preprocessor = classifier.preprocessor
    logits = classifier(preprocessor(TEXTS))
    probabilities = np.array(keras.ops.softmax(logits))
    longest = 0
    for number, text in enumerate(TEXTS):
        place, count = 1, 0
        for start, end, tokens in words(preprocessor.tokenizer, text):
            if place >= preprocessor.sequence_length - 1:
                break
            expected = probabilities[number, place]
            assert answer["start"][number, count] == start
            assert answer["end"][number, count] == end
            label = answer["label"][number, count].decode()
            assert label == LABELS[expected.argmax()]
            np.testing.assert_allclose(
                answer["probability"][number, count], expected.max(), atol=1e-5
            )
            place, count = place + tokens, count + 1
        longest = max(longest, count)
        for name, nothing in (("label", b""), ("start", 0), ("end", 0)):
            assert set(answer[name][number, count:]) <= {nothing}
    assert answer["label"].shape == (len(TEXTS), longest)
    # A word per ideograph; accents and removed characters are within words.
    third = zip(answer["start"][2], answer["end"][2])
    assert [TEXTS[2][a:b] for a, b in third][:3] == ["é", "西", "e\u0301sum"]


def test_equals_the_keras_model(classifier, folder):
    with serving.in_process(folder) as ask:
        check(classifier, ask)
        nothing = ask({"text": ["", " "]}, "serving_default")
        assert nothing["label"].shape == (2, 0)
    described = card.load(folder)
    assert described["labels"] == LABELS


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_through_a_server(classifier, folder, protocol):
    with serving.by_server(folder, protocol) as ask:
        check(classifier, ask)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ("label", lambda x: np.where(x == b"O", b"I-person", x)),
        ("probability", lambda x: x + 1e-3),
        ("start", lambda x: x + 1),
        ("end", lambda x: x - 1),
    ],
)
def test_wrong_answers_are_found(folder, output, fault):
    passed, detail = serving.compare_with_others(
        Exported(folder), "serving_default", output, fault
    )
    assert not passed
    assert detail.startswith(f"serving_default: {output} is")


def test_from_a_preset_without_labels(tmp_path):
    model = tiny.new_token_classifier()
    model.save_to_preset(str(tmp_path / "preset"))
    service = load.load(tmp_path / "preset")
    answers = service.texts[session.DEFAULT_SIGNATURE].padded(["the fox"])
    assert set(answers.outputs["label"][0]) <= {"0", "1", "2"}
