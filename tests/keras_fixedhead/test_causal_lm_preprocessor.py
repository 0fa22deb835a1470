"""Texts as inputs and labels of a language model, and tokens as texts."""

import keras
import pytest

from keras_fixedhead import FixedHeadCausalLMPreprocessor, FixedHeadTokenizer
from tests import tiny_models


@pytest.fixture
def preprocessor(vocabulary):
    return FixedHeadCausalLMPreprocessor(
        FixedHeadTokenizer(vocabulary), sequence_length=7
    )


def check(batch, vocabulary):
    x, y, weights = tiny_models.as_numpy(batch)
    assert list(x) == ["token_ids", "padding_mask"]
    words = [
        [" ".join(vocabulary[i] for i in row) for row in ids]
        for ids in (x["token_ids"], y)
    ]
    assert words[0] == [
        "[CLS] head , a [SEP] [PAD] [PAD]",
        # cut
        "[CLS] a b c d e f",
        "[CLS] [SEP] [PAD] [PAD] [PAD] [PAD] [PAD]",
    ]
    assert words[1] == [
        "head , a [SEP] [PAD] [PAD] [PAD]",
        "a b c d e f [SEP]",
        "[SEP] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD]",
    ]
    assert (x["padding_mask"].sum(1) == [5, 7, 2]).all()
    # Nothing follows the end.
    assert (weights.sum(1) == [4, 7, 1]).all()
    for mask in (x["padding_mask"], weights):
        assert (mask[:, 1:] <= mask[:, :-1]).all()


def test_training(preprocessor, vocabulary):
    texts = ["head, a", "a b c d e f g h", ""]
    check(preprocessor(texts), vocabulary)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="the graph's tokenizer, on the backend that has graphs of it",
)
def test_training_in_a_graph(preprocessor, vocabulary):
    import tensorflow as tf

    texts = ["head, a", "a b c d e f g h", ""]
    data = tf.data.Dataset.from_tensor_slices(texts).batch(3)
    check(next(iter(data.map(preprocessor))), vocabulary)


@pytest.mark.any_backend
def test_generation_there_and_back(preprocessor, vocabulary):
    x = preprocessor.generate_preprocess(["head, a", "zebra"], 11)
    x = tiny_models.as_numpy(x)
    assert [[vocabulary[i] for i in row] for row in x["token_ids"]] == [
        "[CLS] head , a".split() + 7 * ["[PAD]"],
        "[CLS] z ##e ##b ##r ##a".split() + 5 * ["[PAD]"],
    ]
    assert x["padding_mask"].sum(1).tolist() == [4, 6]
    assert preprocessor.generate_postprocess(x) == ["head , a", "zebra"]


@pytest.mark.any_backend
def test_options(preprocessor, vocabulary):
    options = {
        "sequence_length": 5,
        "add_start_token": False,
        "add_end_token": False,
    }
    tokenizer = preprocessor.tokenizer
    made = FixedHeadCausalLMPreprocessor(tokenizer, **options)
    assert options.items() <= made.get_config().items()
    x, y, _ = tiny_models.as_numpy(made(["a b c"]))
    assert [vocabulary[i] for i in x["token_ids"][0]] == [
        *"abc",
        *(2 * ["[PAD]"]),
    ]
    assert [vocabulary[i] for i in y[0, :2]] == ["b", "c"]
    # The paper's length.
    default = FixedHeadCausalLMPreprocessor(tokenizer)
    assert default.sequence_length == 256
