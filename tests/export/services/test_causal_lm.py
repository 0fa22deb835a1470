"""Exported language models answer as the padded Keras model does."""

import keras
import numpy as np
import pytest
import scipy.special

from export import load, services, session
from export.services import causal_lm
from tests.export import tiny
from tests.export.services import kinds

TEXTS = ["open the file", "", "é 西 🦊", "fox " * 50, "##s of ΣΊΣΥΦΟΣ", "sum"]
NEW = 5
SIZE = len(tiny.VOCABULARY)


def token_ids(model, text, end):
    """A row of ids, as long as it is."""
    tokenizer = model.preprocessor.tokenizer
    ids = [tokenizer.start_token_id, *tokenizer(text)][:29]
    return np.array([ids + [tokenizer.end_token_id] * end], "int32")


def likelihood(model, ids):
    """By hand, from the logits of a row alone."""
    logits = model({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    logits = scipy.special.log_softmax(logits, axis=-1)[0, :-1]
    return logits[np.arange(len(logits)), ids[0, 1:]].sum()


def continued(model, text):
    """KerasHub's sampler on a text alone, and how many tokens it added."""
    ids = token_ids(model, text, end=False)
    given = ids.shape[1]
    room = min(NEW, 29 - given)
    found = model.generate_step(
        {
            "token_ids": np.pad(ids, [[0, 0], [0, room]]),
            "padding_mask": np.arange(given + room)[None] < given,
        },
        [model.preprocessor.tokenizer.end_token_id],
    )
    found = {k: keras.ops.convert_to_numpy(x) for k, x in found.items()}
    texts = model.preprocessor.generate_postprocess(found)
    return texts[0].encode(), int(found["padding_mask"].sum()) - given


class TestCausalLM(kinds.KindTests):
    options = {"max_new_tokens": NEW}
    described = {"max_new_tokens"}

    def new(self):
        model = tiny.new_causal_lm()
        model.compile(sampler="greedy")
        return model

    def check(self, model, ask):
        # Sequences with [SEP], the longest of 30: of so many the last is no
        # input any more, and is predicted.
        rows = [token_ids(model, text, end=True) for text in TEXTS]
        expected = [likelihood(model, ids) for ids in rows]
        answers = ask({"text": TEXTS})
        np.testing.assert_allclose(
            answers["log_likelihood"], expected, rtol=1e-5
        )
        assert answers["num_tokens"].tolist() == [ids.size - 1 for ids in rows]
        assert answers["num_tokens"].max() == 29
        answers = ask({"text": TEXTS}, "generate")["generated"].tolist()
        texts, added = zip(*(continued(model, text) for text in TEXTS))
        assert answers == list(texts)
        # Full, ended by [SEP], and ended by the limit.
        assert min(added) == 0 and max(added) == NEW
        assert {*added} - {0, NEW}

    def test_what_the_gate_asks(self, exported):
        assert exported.card["max_new_tokens"] == NEW
        # It was clear, and some of it had to be continued.
        assert exported.golden["generate"].decided.sum() > 15

    def test_more_than_one_pass_of_the_logits(self, ask):
        often = ask({"text": TEXTS * 13})
        for name, array in ask({"text": TEXTS}).items():
            np.testing.assert_allclose(
                often[name], np.tile(array, 13), rtol=1e-5
            )

    def test_token_ids(self, model, ask):
        ids = np.random.default_rng(0).integers(0, 80, (4, 7), "int32")
        lengths = [7, 1, 0, 3]
        inputs = {
            "token_ids": ids,
            "padding_mask": np.int32(np.arange(7) < np.array(lengths)[:, None]),
            "segment_ids": np.zeros_like(ids),
        }
        answers = ask(inputs, "from_token_ids")
        expected = [
            likelihood(model, row[None, :length]) if length > 1 else 0
            for row, length in zip(ids, lengths)
        ]
        np.testing.assert_allclose(
            answers["log_likelihood"], expected, rtol=1e-5
        )
        assert answers["num_tokens"].tolist() == [6, 0, 0, 2]
        ones = np.ones((2, 3), "int32")
        right = dict(token_ids=ones, padding_mask=ones, segment_ids=0 * ones)
        for name, value, message in (
            ("padding_mask", [[1, 0, 1], [1, 1, 1]], "from the first 0 of a r"),
            ("segment_ids", [[0, 0, 0], [0, 1, 1]], "all is one segment"),
        ):
            with pytest.raises(session.StatusError, match=message):
                ask(right | {name: np.array(value, "int32")}, "from_token_ids")

    def test_the_gate_does_not_rely_on_a_guess(self, model):
        """What it compares with is the padded model's, whatever the guess."""
        guess = token_ids(model, "open the file", end=False)[0]
        given = guess.size
        tokenizer = model.preprocessor.tokenizer
        text, added = continued(model, "open the file")
        for rest in (np.zeros(NEW), np.arange(NEW) + tokenizer.end_token_id):
            guess = np.concatenate([guess[:given], rest]).astype("int32")
            ids, margin = causal_lm._continued(model, guess, given, tokenizer)
            assert ids.size == given + added
            found = {"token_ids": ids[None], "padding_mask": ids[None] >= 0}
            texts = model.preprocessor.generate_postprocess(found)
            assert texts[0].encode() == text
            assert margin > 0

    def test_max_new_tokens(self, model, preset):
        for number in (0, 29):
            with pytest.raises(ValueError, match=f"from 1 to 28, .* {number}"):
                services.of(model, model.preprocessor, max_new_tokens=number)
        service = services.of(model, model.preprocessor)
        assert service.described == {"max_new_tokens": 28}
        with pytest.raises(ValueError, match="a FixedHeadCausalLM, received 5"):
            load.load(preset, raw_encoder=True, max_new_tokens=5)

    @pytest.mark.slow
    def test_a_preprocessor_without_start_and_end(self, model):
        """Nothing is predicted of an empty text, or of one token."""
        preprocessor = type(model.preprocessor)(
            model.preprocessor.tokenizer,
            sequence_length=29,
            add_start_token=False,
            add_end_token=False,
        )
        service = services.of(model, preprocessor)
        served = services.signatures(service)
        for name, case in services.golden_cases(service).items():
            expected = case.outputs
            answers = served[name](*case.inputs.values())
            for output, array in expected.items():
                if array.dtype.kind == "U":
                    array = [text.encode() for text in array[case.decided]]
                    found = answers[output].numpy()[case.decided]
                    assert found.tolist() == array
                else:
                    np.testing.assert_allclose(
                        answers[output], array, rtol=1e-5
                    )
            if "num_tokens" in expected:
                assert expected["num_tokens"][:3].tolist() == [0, 0, 0]
        assert services.least_cosine(service, service) == pytest.approx(1)


@pytest.mark.slow
def test_ids_without_a_word_are_not_generated():
    """To detokenize them would end the process."""
    model = tiny.new_causal_lm(unused=41)
    table = model.backbone.token_embedding.embeddings
    table.assign(
        np.where(np.arange(SIZE + 41)[:, None] < SIZE, table, 3 * table)
    )
    service = services.of(model, model.preprocessor, max_new_tokens=NEW)
    logits = model.score(token_ids(model, "open the file", end=False))
    assert keras.ops.argmax(logits[0, -1]) >= SIZE
    case = services.golden_cases(service)["generate"]
    answers = services.signatures(service)["generate"](case.inputs["text"])
    assert case.decided.any()
    expected = case.outputs["generated"][case.decided]
    found = answers["generated"].numpy()[case.decided]
    assert [text.decode() for text in found] == expected.tolist()
