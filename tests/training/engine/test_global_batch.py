"""Texts as inputs of an encoder, of one length or each batch of its own."""

import numpy as np
import tensorflow as tf

from tests.training import tiny
from training.engine.global_batch import tokenized


def test_tokenized_to_one_size_or_the_longest():
    preprocessor = tiny.embedder(prompts={"query": "one two "}).preprocessor
    texts = tf.constant(["red", "green blue", "cat " * 19])
    longest, fixed = (
        tokenized(preprocessor, texts[:2], "query", 13, fixed_size)
        for fixed_size in (False, True)
    )
    assert longest["token_ids"].shape == (2, 6)
    for name, values in longest.items():
        assert fixed[name].shape == (2, 13)
        np.testing.assert_array_equal(fixed[name][:, :6], values)
        assert not np.any(fixed[name][:, 6:])  # [PAD] is the first
    cut = tokenized(preprocessor, texts, None, 7, fixed_size=False)
    assert cut["token_ids"].shape == (3, 7)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def in_graph(text):
        features = tokenized(preprocessor, text, None, 7, fixed_size=True)
        # XLA compiles for sizes it knows.
        assert [x.shape.as_list() for x in features.values()] == [[None, 7]] * 3
        return features

    for name, values in in_graph(texts).items():
        np.testing.assert_array_equal(values, cut[name])
