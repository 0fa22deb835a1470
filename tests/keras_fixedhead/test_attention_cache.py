"""A part of a sequence at a time, the keys and values before it kept."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedMultiHeadAttention
from keras_fixedhead.convert import from_multi_head_attention
from tests.keras_fixedhead.attention_inputs import (
    SIZES,
    mask,
    normal,
    randomize,
)

B, T, S, D, E, N, H = SIZES


@pytest.mark.parametrize(
    ("head_size", "attention_window"), [([2, 3, 3], None), (H, 3)]
)
def test_parts_equal_the_whole(float64, head_size, attention_window):
    layer = FixedMultiHeadAttention(
        N, head_size, attention_window, dtype="float64"
    )
    x = normal(B, S, D)
    value_mask = mask(B, S)
    layer.build(x.shape)
    randomize(layer)
    expected, expected_scores = layer(
        x,
        value_mask=value_mask,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    # What is still to come does not matter.
    cache = 1e3 * normal(B, 2, S, sum(layer.head_sizes))
    start = 0
    for length in (3, 1, 3):
        stop = start + length
        output, scores, cache = layer(
            x[:, start:stop],
            value_mask=value_mask,
            use_causal_mask=True,
            return_attention_scores=True,
            cache=cache,
            cache_update_index=start,
        )
        np.testing.assert_allclose(
            output, expected[:, start:stop], rtol=1e-12, atol=1e-12
        )
        np.testing.assert_allclose(
            scores, expected_scores[:, :, start:stop], atol=1e-12
        )
        start = stop
    assert start == S
    np.testing.assert_allclose(cache[:, 0], layer.key(x), atol=1e-12)
    np.testing.assert_allclose(cache[:, 1], layer.value(x), atol=1e-12)


def test_equals_kerashub():
    theirs = keras_hub.layers.CachedMultiHeadAttention(N, H)
    query, value = normal(B, 2, D), normal(B, 2, D, seed=1)
    theirs.build(query.shape, value.shape)
    ours = from_multi_head_attention(randomize(theirs))
    attention_mask, cache = mask(B, 2, S), normal(B, 2, S, N, H, seed=2)
    expected, expected_cache = theirs(
        query,
        value,
        attention_mask=attention_mask,
        cache=cache,
        cache_update_index=3,
    )
    output, cache = ours(
        query,
        value,
        attention_mask=attention_mask,
        cache=cache.reshape(B, 2, S, N * H),
        cache_update_index=3,
    )
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(
        cache, ops.reshape(expected_cache, cache.shape), atol=1e-6
    )


def test_an_implicit_mask_is_of_queries_alone():
    """It is as long as the part, not as the cache."""
    ids = np.array([[1, 0], [2, 3]])
    x = keras.layers.Embedding(5, D, mask_zero=True)(ids)
    layer = FixedMultiHeadAttention(N, H)
    layer.build((B, T, D))
    cache = normal(B, 2, S, N * H)
    output, _ = layer(x, cache=cache, cache_update_index=0)
    expected, _ = layer(
        ops.convert_to_numpy(x),
        query_mask=ids != 0,
        cache=cache,
        cache_update_index=0,
    )
    np.testing.assert_allclose(output, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "index", "message"),
    [
        ((B, 2, S, N * H), None, "cache_update_index=None"),
        ((B, 3, S, N * H), 0, r"\(batch, 2, length, 51\).*\(2, 3, 7, 51"),
        ((B, 2, S, N * H), 3, "room for 5 .* of 7.*update_index=3"),
    ],
    ids=str,
)
def test_bad_caches(shape, index, message):
    layer = FixedMultiHeadAttention(N, H)
    layer.build((B, T, D))
    with pytest.raises(ValueError, match=message):
        layer(normal(B, T, D), cache=normal(*shape), cache_update_index=index)
