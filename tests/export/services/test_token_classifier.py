"""Exported token classifiers answer as the padded Keras model does."""

import keras
import numpy as np

from export import services, session
from tests.export import tiny
from tests.export.services import kinds

LABELS = ["B-person", "I-person", "O"]
TEXTS = [
    "open the file, (quick)!",
    "",
    "é西\u200b e\u0301sum  ##dog\u00a0the",
    "😀 the\tfox\r\n" * 20,
]


def words(tokenizer, text):
    """The characters of each word and its number of tokens, by a scan of all
    tokens: those that continue a word begin with ##."""
    found = []
    for token, start, end in zip(*tokenizer.tokenize_with_offsets(text)):
        if tokenizer.id_to_token(token).startswith("##"):
            found[-1] = (found[-1][0], end, found[-1][2] + 1)
        else:
            found.append((start, end, 1))
    return found


class TestTokenClassifier(kinds.KindTests):
    described = {"labels", "num_classes"}
    faults = (
        ("serving_default", "label", lambda x: np.where(x == b"O", b"x", x)),
    )

    def new(self):
        return tiny.new_token_classifier(labels=LABELS)

    def check(self, model, ask):
        answer = ask({"text": TEXTS}, "serving_default")
        preprocessor = model.preprocessor
        logits = model(preprocessor(TEXTS))
        probabilities = np.array(keras.ops.softmax(logits))
        longest = 0
        for number, text in enumerate(TEXTS):
            place, count = 1, 0
            for start, end, tokens in words(preprocessor.tokenizer, text):
                if place >= preprocessor.sequence_length - 1:
                    break
                expected = probabilities[number, place]
                where = number, count
                assert answer["start"][where] == start
                assert answer["end"][where] == end
                label = answer["label"][where].decode()
                assert label == LABELS[expected.argmax()]
                np.testing.assert_allclose(
                    answer["probability"][where], expected.max(), atol=1e-5
                )
                place, count = place + tokens, count + 1
            longest = max(longest, count)
            for name, nothing in (("label", b""), ("start", 0), ("end", 0)):
                assert set(answer[name][number, count:]) <= {nothing}
        assert answer["label"].shape == (len(TEXTS), longest)
        # A word per ideograph; accents and removed characters within words.
        third = zip(answer["start"][2], answer["end"][2])
        found = [TEXTS[2][start:end] for start, end in third]
        assert found[:3] == ["é", "西", "e\u0301sum"]

    def test_no_word(self, ask, exported):
        nothing = ask({"text": ["", " "]}, "serving_default")
        assert nothing["label"].shape == (2, 0)
        assert exported.card["labels"] == LABELS


def test_labels_without_names_are_numbers():
    model = tiny.new_token_classifier()
    service = services.of(model, model.preprocessor)
    answers = service.texts[session.DEFAULT_SIGNATURE].padded(["the fox"])
    assert set(answers.outputs["label"][0]) <= {"0", "1", "2"}
