"""A part of a sequence at a time, the keys and values before it kept."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedMultiHeadAttention
from keras_fixedhead.convert import from_multi_head_attention
from tests.keras_fixedhead.attention_inputs import SIZES, mask, normal
from tests.tiny_models import assert_close, randomize

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
        now = expected[:, start:stop], expected_scores[:, :, start:stop]
        assert_close((output, scores), now, rtol=1e-12, atol=1e-12)
        start = stop
    assert start == S
    kept = ops.stack((layer.key(x), layer.value(x)), axis=1)
    assert_close(cache, kept, atol=1e-12)


def test_equals_kerashub():
    theirs = keras_hub.layers.CachedMultiHeadAttention(N, H)
    query, value = normal(B, 2, D), normal(B, 2, D, seed=1)
    theirs.build(query.shape, value.shape)
    ours = from_multi_head_attention(randomize(theirs))
    attention_mask, cache = mask(B, 2, S), normal(B, 2, S, N, H, seed=2)
    options = {"attention_mask": attention_mask, "cache_update_index": 3}
    expected = theirs(query, value, cache=cache, **options)
    cache = cache.reshape(B, 2, S, N * H)
    output, cache = ours(query, value, cache=cache, **options)
    cache = ops.reshape(cache, expected[1].shape)
    assert_close((output, cache), expected, atol=1e-5)


def test_an_implicit_mask_is_of_queries_alone():
    """It is as long as the part, not as the cache."""
    ids = np.array([[1, 0], [2, 3]])
    x = keras.layers.Embedding(5, D, mask_zero=True)(ids)
    layer = FixedMultiHeadAttention(N, H)
    layer.build((B, T, D))
    cached = {"cache": normal(B, 2, S, N * H), "cache_update_index": 0}
    plain = ops.convert_to_numpy(x)
    expected = layer(plain, query_mask=ids != 0, **cached)
    assert_close(layer(x, **cached), expected, atol=1e-6)


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
