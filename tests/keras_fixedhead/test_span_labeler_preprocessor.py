"""Questions and contexts as inputs: called, padded, saved."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTokenizer,
)

QUESTIONS = ["Attention?", "a b c d e f g h", "", "head"]
CONTEXTS = ["heads, " * 19, "é.", "a b", ""]


@pytest.fixture
def preprocessor(vocabulary):
    return FixedHeadSpanLabelerPreprocessor(
        FixedHeadTokenizer(vocabulary),
        sequence_length=17,
        document_stride=3,
        max_question_length=5,
    )


def assert_first_windows(preprocessor, inputs):
    rows = [
        preprocessor.windows(question, context)[0]
        for question, context in zip(QUESTIONS, CONTEXTS)
    ]
    expected = preprocessor.pad(rows)
    assert inputs.keys() == expected.keys()
    for name, values in inputs.items():
        np.testing.assert_array_equal(
            ops.convert_to_numpy(values), expected[name]
        )


def test_calling_gives_the_first_windows(preprocessor):
    for x in (
        (QUESTIONS, CONTEXTS),
        (np.array(QUESTIONS), np.array(CONTEXTS)),
    ):
        assert_first_windows(preprocessor, preprocessor(x, y=None))
    labels, weights = {"start": [1, 2, 3, 4]}, [1, 0, 1, 0]
    x, y, sample_weight = preprocessor(
        (QUESTIONS, CONTEXTS), y=labels, sample_weight=weights
    )
    assert_first_windows(preprocessor, x)
    assert y == labels and sample_weight == weights


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graph operations"
)
def test_in_a_graph(preprocessor):
    import tensorflow as tf

    # One graph, also for no rows.
    dataset = tf.data.Dataset.from_generator(
        lambda: [(QUESTIONS, CONTEXTS), ([], [])],
        output_signature=(tf.TensorSpec([None], tf.string),) * 2,
    )
    inputs, empty = dataset.map(
        lambda questions, contexts: preprocessor((questions, contexts), y=None)
    )
    assert_first_windows(preprocessor, inputs)
    assert empty["token_ids"].shape == (0, 17)


@pytest.mark.any_backend
def test_pad(preprocessor, vocabulary):
    windows = preprocessor.windows("a b", "c, d")
    expected = "[CLS] a b [SEP] c , d [SEP]".split()
    for length in (8, 11, None):
        inputs = preprocessor.pad(windows, length)
        for name, values in inputs.items():
            assert values.dtype == "int32", name
            assert values.shape == (1, length or 17), name
        ids = inputs["token_ids"][0].tolist()
        assert [vocabulary[i] for i in ids[:8]] == expected
        assert inputs["padding_mask"][0].tolist() == [
            *[1] * 8,
            *[0] * (len(ids) - 8),
        ]
        assert inputs["segment_ids"][0].tolist() == [
            *[0] * 4,
            *[1] * 4,
            *[0] * (len(ids) - 8),
        ]
    assert preprocessor.pad([])["token_ids"].shape == (0, 17)
    with pytest.raises(ValueError, match="window, 8. .*sequence_length=7"):
        preprocessor.pad(windows, 7)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"document_stride": 0}, "positive integer. .*document_stride=0"),
        ({"max_question_length": -1}, "max_question_length=-1"),
        (
            {"sequence_length": 8, "max_question_length": 5},
            "room for a context.*sequence_length=8, max_question_length=5",
        ),
    ],
)
def test_errors(vocabulary, arguments, message):
    with pytest.raises(ValueError, match=message):
        FixedHeadSpanLabelerPreprocessor(
            FixedHeadTokenizer(vocabulary), **arguments
        )


@pytest.mark.any_backend
def test_other_inputs_are_an_error(preprocessor):
    inputs = preprocessor.pad(preprocessor.windows("a b", "c"))
    for x in (inputs, QUESTIONS, (QUESTIONS,)):
        with pytest.raises(ValueError, match="tuple of questions and contexts"):
            preprocessor(x, y=None)


@pytest.mark.any_backend
def test_lengths_are_bert_s(vocabulary):
    preprocessor = FixedHeadSpanLabelerPreprocessor(
        FixedHeadTokenizer(vocabulary)
    )
    windows = preprocessor.windows("a " * 70, "b " * 400)
    assert windows.question_tokens_cut == 6
    ranges = [row.token_range for row in windows]
    assert ranges == [(0, 317), (128, 400)]
