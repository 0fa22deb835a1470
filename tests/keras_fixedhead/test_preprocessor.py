"""Texts as inputs of each task: by hand, in a graph, without padding."""

import keras
import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadCausalLMPreprocessor,
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTextEmbedderPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.tiny_models import as_numpy, assert_close

VOCABULARY = [*SPECIAL_TOKENS, *"ab,", "##b"]
PAD, END = 0, 3
TEXTS = ["a [PAD] b", "[PAD]", "a b", "a b a b a b a b [PAD]", ""]
TEXT_IDS = [
    [2, 5, 0, 6, 3, 0, 0, 0],
    [2, 0, 3, 0, 0, 0, 0, 0],
    [2, 5, 6, 3, 0, 0, 0, 0],
    [2, 5, 6, 5, 6, 5, 6, 3],
    [2, 3, 0, 0, 0, 0, 0, 0],
]
PAIRS = (
    ["a [PAD]", "a", "[PAD]", "b", ""],
    ["b", "[PAD] [PAD]", "a b a [PAD]", "b", ""],
)
PAIR_IDS = [
    [2, 5, 0, 3, 6, 3, 0, 0],
    [2, 5, 3, 0, 0, 3, 0, 0],
    [2, 0, 3, 5, 6, 5, 0, 3],
    [2, 6, 3, 6, 3, 0, 0, 0],
    [2, 3, 3, 0, 0, 0, 0, 0],
]

in_a_graph = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graph operations"
)


def new(cls, sequence_length=8, **arguments):
    tokenizer = FixedHeadTokenizer(VOCABULARY, special_tokens_in_strings=True)
    return cls(tokenizer, sequence_length=sequence_length, **arguments)


@pytest.fixture(
    params=[
        (FixedHeadTextEmbedderPreprocessor, TEXTS, TEXT_IDS, [5, 3, 4, 8, 2]),
        (FixedHeadTextClassifierPreprocessor, PAIRS, PAIR_IDS, [6, 6, 8, 5, 3]),
    ],
    ids=["embedder", "classifier"],
)
def case(request):
    """A preprocessor, texts, their ids and numbers of real tokens."""
    cls, *rest = request.param
    return new(cls), *rest


def check(found, ids, real):
    found = as_numpy(found)
    np.testing.assert_array_equal(found["token_ids"], ids)
    mask = np.arange(8) < np.array(real)[:, None]
    np.testing.assert_array_equal(found["padding_mask"], mask)
    ends = np.array(ids) == END
    segments = np.where(mask, np.cumsum(ends, axis=1) - ends, 0)
    np.testing.assert_array_equal(found["segment_ids"], segments)


def test_by_hand(case):
    """A [PAD] within a text is a real token."""
    preprocessor, texts, *expected = case
    found, y = preprocessor(texts, y=np.zeros(5))
    check(found, *expected)
    assert y.shape == (5,)


@pytest.mark.any_backend
def test_of_a_dataset(case):
    tf = pytest.importorskip("tensorflow")
    preprocessor, texts, *expected = case
    dataset = tf.data.Dataset.from_tensor_slices((texts, range(5)))
    found, _ = next(iter(dataset.batch(5).map(preprocessor)))
    check(found, *expected)
    if texts is TEXTS:
        found, _ = next(iter(dataset.map(preprocessor).batch(5)))
        check(found, *expected)


def check_unpadded(preprocessor, found, expected):
    expected = as_numpy(expected)
    longest = int(expected["padding_mask"].sum(axis=1).max())
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert values.dtype == "int32"
        np.testing.assert_array_equal(values, expected[name][:, :longest])


@in_a_graph
@pytest.mark.parametrize("truncate", ["round_robin", "waterfall"])
def test_texts_and_pairs_to_the_longest(truncate):
    rng = np.random.default_rng(0)
    first, second = (
        [
            " ".join(rng.choice(["a", "[PAD]"], rng.integers(17)))
            for _ in "a" * 97
        ]
        for _ in range(2)
    )
    for length in (4, 5, 12, 13, 37):
        preprocessor = new(
            FixedHeadTextClassifierPreprocessor, length, truncate=truncate
        )
        for x, texts in ((first, [first]), ((first, second), (first, second))):
            check_unpadded(
                preprocessor,
                preprocessor.pad_to_longest(*texts),
                preprocessor(x, y=None),
            )
    found = preprocessor.pad_to_longest(first, second, sequence_length=7)
    assert found["token_ids"].shape == (97, 7)
    with pytest.raises(ValueError, match="over 3, the special .*=3"):
        preprocessor.pad_to_longest(first, second, sequence_length=3)


@in_a_graph
@pytest.mark.any_backend
def test_prompted_texts_to_the_longest():
    preprocessor = new(
        FixedHeadTextEmbedderPreprocessor, prompts={"query": "b b "}
    )
    check_unpadded(
        preprocessor,
        preprocessor.pad_to_longest(TEXTS, prompt="query"),
        preprocessor([f"b b {text}" for text in TEXTS]),
    )


@pytest.mark.any_backend
@pytest.mark.parametrize("length", [2, -3])
def test_lengths_without_room_for_a_token(length):
    with pytest.raises(ValueError, match=f"over 2.*sequence_length={length}"):
        new(FixedHeadTextEmbedderPreprocessor, length)


@pytest.mark.any_backend
def test_unknown_truncation_is_an_error():
    with pytest.raises(ValueError, match="`truncate` .* truncate='longest'"):
        new(FixedHeadTextClassifierPreprocessor, truncate="longest")


class TestSpanLabeler:
    QUESTIONS = ["b?", "a a b a b b a a", "", "b"]
    CONTEXTS = ["ab, " * 19, "a.", "a b", ""]

    @pytest.fixture
    def preprocessor(self):
        return new(
            FixedHeadSpanLabelerPreprocessor,
            17,
            document_stride=3,
            max_question_length=5,
        )

    def check_first_windows(self, preprocessor, found):
        rows = [
            preprocessor.windows(question, context)[0]
            for question, context in zip(self.QUESTIONS, self.CONTEXTS)
        ]
        found = {name: np.array(x, "int32") for name, x in found.items()}
        assert_close(found, preprocessor.pad(rows))

    def test_calling_gives_the_first_windows(self, preprocessor):
        labels, weights = {"start": [1, 2, 3, 4]}, [1, 0, 1, 0]
        for texts in (list, np.array):
            x = texts(self.QUESTIONS), texts(self.CONTEXTS)
            found, *others = preprocessor(x, y=labels, sample_weight=weights)
            self.check_first_windows(preprocessor, found)
            assert others == [labels, weights]

    @in_a_graph
    def test_in_a_graph(self, preprocessor):
        import tensorflow as tf

        # One graph, also for no rows.
        dataset = tf.data.Dataset.from_generator(
            lambda: [(self.QUESTIONS, self.CONTEXTS), ([], [])],
            output_signature=(tf.TensorSpec([None], tf.string),) * 2,
        )
        inputs, empty = dataset.map(lambda *x: preprocessor(x, y=None))
        self.check_first_windows(preprocessor, inputs)
        assert empty["token_ids"].shape == (0, 17)

    @pytest.mark.any_backend
    def test_pad(self, preprocessor):
        windows = preprocessor.windows("a b", "a, ab")
        rows = {
            "token_ids": [2, 5, 6, 3, 5, 7, 5, 8, 3],
            "padding_mask": [1] * 9,
            "segment_ids": [0] * 4 + [1] * 5,
        }
        for length in (9, 11, None):
            found = preprocessor.pad(windows, length)
            assert found.keys() == rows.keys()
            for name, row in rows.items():
                padding = [0] * ((length or 17) - 9)
                assert found[name].dtype == "int32"
                assert found[name].tolist() == [row + padding]
        assert preprocessor.pad([])["token_ids"].shape == (0, 17)

    @pytest.mark.any_backend
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"document_stride": 0}, "positive integer. .*document_stride=0"),
            ({"max_question_length": -1}, "max_question_length=-1"),
            ({"max_question_length": 5}, "room for a context.*=8, max.*=5"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            new(FixedHeadSpanLabelerPreprocessor, **arguments)

    @pytest.mark.any_backend
    def test_other_inputs_are_an_error(self, preprocessor):
        for x in (TEXTS, (TEXTS, TEXTS, TEXTS)):
            with pytest.raises(ValueError, match="tuple of questions and cont"):
                preprocessor(x, y=None)


class TestCausalLM:
    @pytest.fixture
    def preprocessor(self):
        return new(FixedHeadCausalLMPreprocessor, 5)

    def test_training(self, preprocessor):
        x, y, weights = as_numpy(preprocessor(["a, b", "a b a b a b", ""]))
        ids = [[2, 5, 7, 6, 3], [2, 5, 6, 5, 6], [2, 3, 0, 0, 0]]
        assert x["token_ids"].tolist() == ids
        assert x["padding_mask"].sum(axis=1).tolist() == [5, 5, 2]
        # Nothing follows the end.
        assert y.tolist() == [[5, 7, 6, 3, 0], [5, 6, 5, 6, 3], [3, 0, 0, 0, 0]]
        assert weights.sum(axis=1).tolist() == [4, 5, 1]

    @pytest.mark.any_backend
    def test_generation_there_and_back(self, preprocessor):
        x = as_numpy(preprocessor.generate_preprocess(["a, b", "abb"], 6))
        ids = [[2, 5, 7, 6, 0, 0], [2, 5, 8, 8, 0, 0]]
        assert x["token_ids"].tolist() == ids
        assert x["padding_mask"].sum(axis=1).tolist() == [4, 4]
        assert preprocessor.generate_postprocess(x) == ["a , b", "abb"]
