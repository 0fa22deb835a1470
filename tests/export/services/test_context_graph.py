"""Windows and answers in the graph equal those of the library."""

import random

import numpy as np
import pytest
import tensorflow as tf

import keras_fixedhead
from export.services import context_graph
from keras_fixedhead import context_windows
from tests.export import tiny

PIECES = (
    *("fox", "the", "opened", "qzq", "é", "e\u0301", "σ", "西", "西西", "🦊"),
    *(".", ",", "(", "#", " ", "  ", "\t", "\u00a0", "\u200b", "\n", "Élan"),
)


def random_text(generator, most):
    count = generator.randrange(most)
    return "".join(
        generator.choice(PIECES) + generator.choice(("", " "))
        for _ in range(count)
    )


def byte_words(context):
    """Starts and ends of the words, found character by character."""
    starts, ends, place, open_word = [], [], 0, False
    for character in context:
        size = len(character.encode())
        alone = character in ".,(#西"
        if character in " \t\u00a0\n":
            open_word = False
        elif open_word and not alone:
            ends[-1] = place + size
        else:
            starts.append(place)
            ends.append(place + size)
            open_word = not alone
        place += size
    return starts, ends


@pytest.fixture(scope="module")
def labeler():
    return tiny.new_labeler()


def divide(preprocessor, questions, contexts):
    """The windows of questions in the graph, and those of the library."""
    found = context_graph.windows(
        preprocessor, tf.constant(questions), tf.constant(contexts)
    )
    rows = [
        preprocessor.windows(question, context)
        for question, context in zip(questions, contexts, strict=True)
    ]
    return found, rows


def check_inputs(preprocessor, found, rows):
    windows = [window for row in rows for window in row]
    expected = preprocessor.pad(windows, found.token.shape[1])
    for name, ids in expected.items():
        np.testing.assert_array_equal(found.inputs[name], ids)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_words_one_by_one_have_the_same_ids(labeler, lowercase, special):
    """Also where versions of Unicode differ, and with special tokens."""
    tokenizer = keras_fixedhead.FixedHeadTokenizer(
        [*labeler.preprocessor.tokenizer.get_vocabulary(), "ΣΑΣ", "σας"],
        lowercase=lowercase,
        special_tokens_in_strings=special,
    )
    preprocessor = keras_fixedhead.FixedHeadSpanLabelerPreprocessor(
        tokenizer, 331, 211, 7
    )
    odd = "\0\u061d\u2e5d\u037e\u166d\uf0b7\x85\x0b\x1f\u3000"
    odd = [
        *(*odd, "\U0002b820", "\U0002f800", "[SEP]", "[CLS]", "[sep]", "ΣΑΣ"),
        *("fox", "the", "a" * 101, "ก" * 43),
    ]
    generator = random.Random(0)
    contexts = [
        "".join(generator.choices(odd, k=generator.randrange(13)))
        for _ in range(211)
    ]
    found, rows = divide(preprocessor, contexts[::-1], contexts)
    check_inputs(preprocessor, found, [windows[:1] for windows in rows])


# A window is soon full; a next one begins where it ends; a last one is much
# shorter than those before it, and answers can be too long.
SIZES = ((29, 5, 7), (29, 23, 17), (331, 211, 7))


def new_preprocessor(labeler, sizes):
    return keras_fixedhead.FixedHeadSpanLabelerPreprocessor(
        labeler.preprocessor.tokenizer, *sizes
    )


def random_texts(generator, sizes):
    """Questions and contexts, of up to several windows."""
    contexts = [
        random_text(generator, 2 * sizes[0]) for _ in range(61 * 29 // sizes[0])
    ]
    contexts = ["", "\u200b", *contexts]
    return [random_text(generator, 11) for _ in contexts], contexts


@pytest.mark.parametrize("sizes", SIZES)
def test_windows_equal_the_preprocessors(labeler, sizes):
    preprocessor = new_preprocessor(labeler, sizes)
    questions, contexts = random_texts(random.Random(sum(sizes)), sizes)
    found, rows = divide(preprocessor, questions, contexts)
    assert max(map(len, rows)) > 1
    check_inputs(preprocessor, found, rows)
    question = np.repeat(range(len(rows)), [len(row) for row in rows])
    np.testing.assert_array_equal(found.question, question)
    for number, windows in enumerate(rows):
        mine = question == number
        may_start = found.may_start.numpy()[mine]
        # Each token starts in one window, that of most context.
        window, _ = np.nonzero(may_start)
        token = found.token.numpy()[mine][may_start]
        order = np.argsort(token)
        np.testing.assert_array_equal(window[order], windows.max_context)
        places = found.starts.numpy()[token[order]]
        assert set(places) <= set(byte_words(contexts[number])[0])


@pytest.mark.parametrize("sizes", SIZES)
def test_answers_equal_decode(labeler, sizes):
    """With logits of chance, so that every place is an answer some time."""
    preprocessor = new_preprocessor(labeler, sizes)
    questions, contexts = random_texts(random.Random(0), sizes)
    table = np.random.default_rng(0).normal(
        size=[2, sizes[0], labeler.backbone.vocabulary_size]
    )
    # The same logits for the same ids at the same places.
    table = tf.constant(table, tf.float32)

    def label(inputs):
        ids = tf.constant(inputs["token_ids"])
        places = tf.range(tf.shape(ids)[1])[tf.newaxis] + 0 * ids
        where = tf.stack([places, ids], axis=-1)
        return {
            "start": tf.gather_nd(table[0], where),
            "end": tf.gather_nd(table[1], where),
        }

    found, rows = divide(preprocessor, questions, contexts)
    answers = context_graph.answers(label, found, tf.constant(contexts))
    answers = {name: x.numpy() for name, x in answers.items()}
    same = 0
    for number, (context, windows) in enumerate(zip(contexts, rows)):
        logits = label(preprocessor.pad(windows))
        best = context_windows.decode(
            logits["start"].numpy(), logits["end"].numpy(), windows
        )[0]
        start, end = answers["start"][number], answers["end"][number]
        assert context.encode()[start:end] == answers["answer"][number]
        np.testing.assert_allclose(answers["score"][number], best.score, 1e-5)
        begin = len(context[: best.start].encode())
        finish = len(context[: best.end].encode())
        starts, ends = byte_words(context)
        if best.text:
            assert start == max(place for place in starts if place <= begin)
            assert end == min(place for place in ends if place >= finish)
        if (start, end) == (begin, finish):
            assert answers["answer"][number].decode() == best.text
            same += 1
    assert same > 2


def test_the_longest_answer(labeler):
    def label(inputs):
        places = tf.range(tf.shape(inputs["token_ids"])[1], dtype=tf.float32)
        places = tf.zeros(tf.shape(inputs["token_ids"])) + places
        return {"start": -9.0 * places, "end": places}

    preprocessor, contexts = new_preprocessor(labeler, SIZES[2]), ["fox " * 41]
    found, _ = divide(preprocessor, ["a"], contexts)
    answers = context_graph.answers(label, found, tf.constant(contexts))
    assert answers["answer"].numpy()[0].split() == [b"fox"] * 30


def test_no_question(labeler):
    none = tf.constant([], tf.string)
    found = context_graph.windows(labeler.preprocessor, none, none)
    answers = context_graph.answers(
        tf.function(labeler.label_packed), found, none
    )
    assert {x.shape.as_list()[0] for x in answers.values()} == {0}


def test_windows_end_somewhere(labeler, monkeypatch):
    """What follows the last window is not seen."""
    monkeypatch.setattr(context_graph, "MAX_WINDOWS", 3)
    found, [windows] = divide(labeler.preprocessor, ["fox"], ["fox " * 99])
    assert len(windows) > 3
    check_inputs(labeler.preprocessor, found, [windows[:3]])


def test_bytes_that_are_no_text(labeler):
    """Places count all bytes; the answer has those that JSON carries."""
    context = b"\xff a\xfeb \xe8\xa5 fox\xc3"
    contexts = tf.constant([context])
    found = context_graph.windows(
        labeler.preprocessor, tf.constant([b"\xff"]), contexts
    )
    answers = context_graph.answers(labeler.label_packed, found, contexts)
    start, end = answers["start"].numpy()[0], answers["end"].numpy()[0]
    # The words that have tokens: a\xfeb and fox\xc3.
    assert start in (2, 9)
    assert end in (5, 13)
    assert answers["answer"].numpy()[0] == (
        context[start:end].decode(errors="ignore").encode()
    )
