"""The layer against `keras.layers.MultiHeadAttention` and against NumPy."""

import itertools

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedMultiHeadAttention
from keras_fixedhead.convert import from_multi_head_attention

# Primes, all different, so that a swapped axis cannot pass.
B, T, S, D, E, N, H = 2, 5, 7, 11, 13, 3, 17


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def mask(*shape, seed=1):
    """A random mask whose rows each allow their first position."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def randomize(layer):
    for i, variable in enumerate(layer.weights):
        if "seed" not in variable.path:
            variable.assign(0.3 * normal(*variable.shape, seed=i))
    return layer


def output_and_gradients(layer, *inputs, **kwargs):
    """The output, and d sum(sin(output)) / d (inputs, trainable weights)."""
    if keras.backend.backend() == "jax":
        import jax

        def loss(trainable, inputs):
            output, _ = layer.stateless_call(
                trainable,
                [v.value for v in layer.non_trainable_variables],
                *inputs,
                **kwargs,
            )
            return ops.sum(ops.sin(output)), output

        gradients, output = jax.grad(loss, argnums=(0, 1), has_aux=True)(
            [v.value for v in layer.trainable_variables],
            [ops.convert_to_tensor(x) for x in inputs],
        )
        gradients = gradients[1] + gradients[0]
    elif keras.backend.backend() == "torch":
        import torch

        inputs = [torch.tensor(x, requires_grad=True) for x in inputs]
        weights = [v.value for v in layer.trainable_variables]
        output = layer(*inputs, **kwargs)
        loss = ops.sum(ops.sin(output))
        gradients = torch.autograd.grad(loss, [*inputs, *weights])
    else:
        import tensorflow as tf

        inputs = [tf.constant(x) for x in inputs]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = layer(*inputs, **kwargs)
            loss = ops.sum(ops.sin(output))
        weights = [v.value for v in layer.trainable_variables]
        gradients = tape.gradient(loss, [*inputs, *weights])
    return (
        ops.convert_to_numpy(output),
        [ops.convert_to_numpy(gradient) for gradient in gradients],
    )


def numpy_attention(layer, query, value, allowed, scale=None):
    """Equation (9), head by head; `allowed` broadcasts to [B, N, T, S]."""
    weights = {
        w.path.split("/", 1)[1]: ops.convert_to_numpy(w) for w in layer.weights
    }
    batch, length = query.shape[:2]
    source = value.shape[1]
    allowed = np.broadcast_to(allowed, (batch, N, length, source))
    contexts, all_scores = [], []
    ends = np.cumsum(layer.head_sizes)
    for i, (size, end) in enumerate(zip(layer.head_sizes, ends)):
        q, k, v = (
            x @ weights[f"{name}/kernel"][:, end - size : end]
            + weights[f"{name}/bias"][end - size : end]
            for name, x in (("query", query), ("key", value), ("value", value))
        )
        logits = q @ k.transpose(0, 2, 1)
        logits = logits / np.sqrt(size) if scale is None else scale * logits
        exp = np.exp(logits) * allowed[:, i]
        total = exp.sum(-1, keepdims=True)
        scores = np.divide(exp, total, out=np.zeros_like(exp), where=total > 0)
        contexts.append(scores @ v)
        all_scores.append(scores)
    output = (
        np.concatenate(contexts, -1) @ weights["attention_output/kernel"]
        + weights["attention_output/bias"]
    )
    return output, np.stack(all_scores, 1)


MASKS = {
    "value_mask": mask(B, S, seed=2),
    "key_mask": mask(B, S, seed=3),
    "attention_mask": mask(B, T, S, seed=4),
    "use_causal_mask": True,
}


class TestAgainstKeras:
    @pytest.mark.parametrize(
        "names",
        [
            names
            for count in range(len(MASKS) + 1)
            for names in itertools.combinations(MASKS, count)
        ],
        ids=lambda names: "+".join(names) or "no_mask",
    )
    def test_cross_attention_with_masks(self, names):
        query, value, key = normal(B, T, D), normal(B, S, E), normal(B, S, D)
        theirs = keras.layers.MultiHeadAttention(N, H)
        theirs.build(query.shape, value.shape, key.shape)
        ours = from_multi_head_attention(randomize(theirs))
        masks = {name: MASKS[name] for name in names}
        expected, expected_gradients = output_and_gradients(
            theirs, query, value, key, **masks
        )
        output, gradients = output_and_gradients(
            ours, query, value, key, **masks
        )
        np.testing.assert_allclose(output, expected, atol=1e-5)
        for ours_, theirs_ in zip(gradients, expected_gradients):
            np.testing.assert_allclose(
                ours_, theirs_.reshape(ours_.shape), atol=1e-5
            )
        for result, reference in zip(
            ours(query, value, key, return_attention_scores=True, **masks),
            theirs(query, value, key, return_attention_scores=True, **masks),
        ):
            np.testing.assert_allclose(result, reference, atol=1e-5)

    @pytest.mark.parametrize(
        "shape", [(T, S), (1, T, S), (B, 1, S), (B, N, T, S), (B, 1, T, S)]
    )
    def test_attention_mask_shapes(self, shape):
        query, value = normal(B, T, D), normal(B, S, E)
        theirs = keras.layers.MultiHeadAttention(N, H)
        theirs.build(query.shape, value.shape)
        ours = from_multi_head_attention(randomize(theirs))
        attention_mask = mask(*shape)
        np.testing.assert_allclose(
            ours(query, value, attention_mask=attention_mask),
            theirs(query, value, attention_mask=attention_mask),
            atol=1e-5,
        )

    def test_self_attention_with_implicit_masks(self):
        ids = np.array([[1, 2, 3, 0, 0], [4, 1, 2, 3, 1]])
        embedding = keras.layers.Embedding(6, D, mask_zero=True)
        theirs = keras.layers.MultiHeadAttention(N, H)
        x = embedding(ids)
        theirs(x, x)
        ours = from_multi_head_attention(randomize(theirs))
        expected = theirs(embedding(ids), embedding(ids))
        output = ours(embedding(ids))
        real = ids != 0
        np.testing.assert_allclose(
            ops.convert_to_numpy(output)[real],
            ops.convert_to_numpy(expected)[real],
            atol=1e-5,
        )
        np.testing.assert_array_equal(
            ops.convert_to_numpy(keras.src.backend.get_keras_mask(output)),
            real,
        )

    @pytest.mark.parametrize(
        "arguments",
        [
            {"sliding_window": 2},
            {"use_bias": False},
            {"output_shape": 19},
            {"dropout": 0.3},
            {"sliding_window": 3, "dropout": 0.3, "seed": 5},
        ],
        ids=str,
    )
    def test_options(self, arguments):
        x = normal(B, T, D)
        theirs = keras.layers.MultiHeadAttention(N, H, **arguments)
        theirs.build(x.shape, x.shape)
        ours = from_multi_head_attention(randomize(theirs))
        for causal in (False, True):
            np.testing.assert_allclose(
                ours(x, use_causal_mask=causal),
                theirs(x, x, use_causal_mask=causal),
                atol=1e-5,
            )

    @pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
    def test_mixed_precision(self, dtype):
        x = normal(B, T, D)
        theirs = keras.layers.MultiHeadAttention(N, H, dtype=dtype)
        theirs.build(x.shape, x.shape)
        ours = from_multi_head_attention(randomize(theirs))
        output = ours(x, value_mask=mask(B, T))
        assert keras.backend.standardize_dtype(output.dtype) == dtype[6:]
        np.testing.assert_allclose(
            ops.convert_to_numpy(ops.cast(output, "float32")),
            ops.convert_to_numpy(
                ops.cast(theirs(x, x, value_mask=mask(B, T)), "float32")
            ),
            atol=0.1 if "bfloat16" in dtype else 0.01,
        )

    @pytest.mark.parametrize(
        "arguments",
        [
            {"value_dim": 2},
            {"output_shape": (2, 3)},
            {"use_gate": True},
            {"activity_regularizer": "l2"},
        ],
        ids=str,
    )
    def test_what_has_no_equivalent_is_an_error(self, arguments):
        layer = keras.layers.MultiHeadAttention(N, H, **arguments)
        layer.build((B, T, D), (B, T, D))
        with pytest.raises(ValueError, match=next(iter(arguments))):
            from_multi_head_attention(layer)

    def test_not_built_is_an_error(self):
        with pytest.raises(ValueError, match="no weights yet"):
            from_multi_head_attention(keras.layers.MultiHeadAttention(N, H))


class TestAgainstNumpy:
    """Where Keras's layer is inconsistent, and what it does not have."""

    def layer(self, head_size=H, **arguments):
        layer = FixedMultiHeadAttention(N, head_size, **arguments)
        layer.build((B, T, D), (B, S, E))
        return randomize(layer)

    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    @pytest.mark.parametrize("return_scores", [False, True])
    def test_fully_masked_rows_and_query_mask(self, dropout, return_scores):
        layer = self.layer(dropout=dropout)
        query, value = normal(B, T, D), normal(B, S, E)
        attention_mask, query_mask = mask(B, T, S), mask(B, T)
        attention_mask[1, 2] = False
        query_mask[0, 3] = False
        allowed = attention_mask & query_mask[:, :, None]
        expected, expected_scores = numpy_attention(
            layer, query, value, allowed[:, None]
        )
        output = layer(
            query,
            value,
            attention_mask=attention_mask,
            query_mask=query_mask,
            return_attention_scores=return_scores,
        )
        if return_scores:
            output, scores = output
            np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
        np.testing.assert_allclose(output, expected, atol=1e-5)
        bias = layer.attention_output.bias
        np.testing.assert_allclose(output[1, 2], bias, atol=1e-6)
        np.testing.assert_allclose(output[0, 3], bias, atol=1e-6)

    def test_an_explicit_mask_wins_over_an_implicit_one(self):
        layer = FixedMultiHeadAttention(N, H)
        ids = np.array([[1, 2, 0, 3, 1], [1, 0, 0, 2, 2]])
        x = keras.layers.Embedding(4, D, mask_zero=True)(ids)
        layer(x)
        randomize(layer)
        explicit = {
            name: mask(B, T, seed=i)
            for i, name in enumerate(("query_mask", "value_mask", "key_mask"))
        }
        allowed = (
            explicit["query_mask"][:, :, None]
            & (explicit["value_mask"] & explicit["key_mask"])[:, None]
        )
        expected, _ = numpy_attention(
            layer, ops.convert_to_numpy(x), ops.convert_to_numpy(x),
            allowed[:, None],
        )  # fmt: skip
        np.testing.assert_allclose(
            layer(x, x, x, **explicit), expected, atol=1e-5
        )

    def test_masks_by_position_and_as_lists(self):
        """As Keras's layer takes them, also in a functional model."""
        layer = self.layer()
        query, value, key = normal(B, T, D), normal(B, S, E), normal(B, S, E)
        masks = [mask(B, length, seed=length) for length in (T, S)]
        allowed = masks[0][:, None, :, None] & masks[1][:, None, None]
        expected = layer(query, value, key, *masks)
        scores = layer(query, value, key, *masks, return_attention_scores=True)[
            1
        ]
        assert (ops.convert_to_numpy(scores) > 0).tolist() == (
            np.broadcast_to(allowed, scores.shape).tolist()
        )
        np.testing.assert_array_equal(
            layer(
                query,
                value,
                key,
                query_mask=masks[0].tolist(),
                value_mask=masks[1].tolist(),
                attention_mask=np.ones((T, S), int).tolist(),
            ),
            expected,
        )
        inputs = [keras.Input(x.shape[1:]) for x in (query, value, key)]
        inputs += [keras.Input(x.shape[1:], dtype="bool") for x in masks]
        model = keras.Model(inputs, layer(*inputs))
        np.testing.assert_allclose(
            model([query, value, key, *masks]), expected, atol=1e-6
        )

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("query_mask", (B, T)),
            ("value_mask", (B, S)),
            ("key_mask", (B, S)),
            ("attention_mask", (T, S)),
        ],
    )
    def test_float_masks_are_an_error(self, name, shape):
        """They could be additive, where 0 means attend."""
        layer = self.layer()
        additive = np.where(mask(*shape), 0.0, -1e9).astype("float32")
        for received in (additive, additive.tolist()):
            with pytest.raises(ValueError, match=f"`{name}`.*mask == 0"):
                layer(normal(B, T, D), normal(B, S, E), **{name: received})

    @pytest.mark.parametrize("target", [0, T])
    @pytest.mark.parametrize("arguments", [{}, {"use_causal_mask": True}])
    def test_empty_sequences(self, target, arguments):
        layer = self.layer()
        output = layer(normal(B, target, D), normal(B, 0, E), **arguments)
        assert output.shape == (B, target, D)
        bias = np.broadcast_to(layer.attention_output.bias, output.shape)
        np.testing.assert_allclose(output, bias)
        output = layer(
            normal(B, 0, D),
            normal(B, S, E),
            value_mask=mask(B, S),
            **arguments,
        )
        assert output.shape == (B, 0, D)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_fully_masked_rows_are_finite_in_half_precision(self, dtype):
        layer = FixedMultiHeadAttention(N, H, dtype=dtype)
        output, scores = layer(
            normal(B, T, D),
            value_mask=np.zeros((B, T), bool),
            return_attention_scores=True,
        )
        assert not ops.convert_to_numpy(ops.any(scores != 0))
        assert not ops.convert_to_numpy(ops.any(output != 0))

    @pytest.mark.parametrize(
        "head_size", [(2, 3, 5), (3, 3, 2), (2, 5, 5), (7, 7, 7)]
    )
    def test_heads_of_different_sizes(self, head_size):
        layer = self.layer(head_size)
        query, value = normal(B, T, D), normal(B, S, E)
        attention_mask = mask(B, N, T, S)
        expected, expected_scores = numpy_attention(
            layer, query, value, attention_mask
        )
        output, scores = layer(
            query,
            value,
            attention_mask=attention_mask,
            return_attention_scores=True,
        )
        np.testing.assert_allclose(output, expected, atol=1e-5)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)

    @pytest.mark.parametrize("causal", [False, True])
    def test_attention_window(self, causal):
        layer = self.layer(attention_window=2)
        query, value = normal(B, T, D), normal(B, S, E)
        distance = np.arange(T)[:, None] - np.arange(S)
        allowed = abs(distance) < 2
        if causal:
            allowed &= distance >= 0
        expected, _ = numpy_attention(layer, query, value, allowed)
        np.testing.assert_allclose(
            layer(query, value, use_causal_mask=causal), expected, atol=1e-5
        )

    @pytest.mark.parametrize(
        ("head_size", "scale"), [(H, 0.7), ([2, 5, 5], 0.3), ([2, 5, 5], 1)]
    )
    def test_attention_scale(self, head_size, scale):
        layer = self.layer(head_size, attention_scale=scale)
        assert layer.attention_scales == (scale,) * N
        query, value, allowed = normal(B, T, D), normal(B, S, E), mask(B, T, S)
        expected, expected_scores = numpy_attention(
            layer, query, value, allowed[:, None], scale
        )
        output, scores = layer(
            query, value, attention_mask=allowed, return_attention_scores=True
        )
        np.testing.assert_allclose(output, expected, atol=1e-5)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


class TestCache:
    """A part of a sequence at a time, the keys and values before it kept."""

    @pytest.mark.parametrize(
        ("head_size", "attention_window"), [([2, 3, 3], None), (H, 3)]
    )
    def test_parts_equal_the_whole(self, float64, head_size, attention_window):
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

    def test_equals_kerashub(self):
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

    def test_an_implicit_mask_is_of_queries_alone(self):
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

    def test_symbolic_shapes(self):
        layer = FixedMultiHeadAttention(N, H, output_dim=19)
        *outputs, cache = layer(
            keras.Input((T, D)),
            return_attention_scores=True,
            cache=keras.Input((2, S, N * H)),
            cache_update_index=1,
        )
        assert [x.shape for x in outputs] == [(None, T, 19), (None, N, T, S)]
        assert cache.shape == (None, 2, S, N * H)

    @pytest.mark.parametrize(
        ("shape", "index", "message"),
        [
            (
                (B, 2, S, N * H),
                None,
                "together.*a cache, cache_update_index=None",
            ),
            (None, 3, "together.*no cache, cache_update_index=3"),
            ((B, 2, S, N, H), 0, r"\(batch, 2, length, 51\).*\(2, 2, 7, 3, 17"),
            ((B, 3, S, N * H), 0, r"\(batch, 2, length, 51\).*\(2, 3, 7, 51"),
            ((B, 2, S, H), 0, r"\(batch, 2, length, 51\).*\(2, 2, 7, 17"),
            ((B, 2, S, N * H), 3, "room for 5 .* of 7.*update_index=3"),
            ((B, 2, S, N * H), -1, "cache_update_index=-1"),
        ],
        ids=str,
    )
    def test_bad_caches(self, shape, index, message):
        layer = FixedMultiHeadAttention(N, H)
        layer.build((B, T, D))
        with pytest.raises(ValueError, match=message):
            layer(
                normal(B, T, D),
                cache=None if shape is None else normal(*shape),
                cache_update_index=index,
            )


def test_head_size_is_the_sequence_length_and_stays_it():
    inputs = keras.Input((T, 32))
    model = keras.Model(inputs, FixedMultiHeadAttention(7)(inputs))
    layer = model.layers[-1]
    assert layer.head_size == T
    assert layer.query.kernel.shape == (32, 7 * T)
    again = FixedMultiHeadAttention.from_config(layer.get_config())
    again.build((None, 2 * T, 32))
    assert again.head_size == T


def test_unknown_length_without_head_size_is_an_error():
    with pytest.raises(ValueError, match="Pass `head_size`"):
        FixedMultiHeadAttention(N)(keras.Input((None, D)))


def test_saved_layout():
    """What files hold: it is never to change."""
    layer = FixedMultiHeadAttention(N, H, name="a")
    layer.build((B, T, D), (B, S, E), (B, S, 19))
    assert {w.path: w.shape for w in layer.weights} == {
        "a/query/kernel": (D, N * H),
        "a/query/bias": (N * H,),
        "a/key/kernel": (19, N * H),
        "a/key/bias": (N * H,),
        "a/value/kernel": (E, N * H),
        "a/value/bias": (N * H,),
        "a/attention_output/kernel": (N * H, D),
        "a/attention_output/bias": (D,),
    }


def test_every_option_survives_get_config():
    arguments = dict(
        num_heads=N,
        head_size=[2, 3, 5],
        attention_window=4,
        attention_scale=0.3,
        dropout=0.25,
        use_bias=False,
        output_dim=19,
        kernel_initializer=keras.initializers.HeNormal(seed=3),
        bias_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer=keras.regularizers.L1(0.2),
        kernel_constraint=keras.constraints.NonNeg(),
        bias_constraint=keras.constraints.UnitNorm(),
        seed=5,
        name="a",
        dtype="mixed_bfloat16",
        trainable=False,
    )
    layer = FixedMultiHeadAttention(**arguments)
    config = layer.get_config()
    assert set(config) == set(arguments)
    for name, value in arguments.items():
        if isinstance(value, (int, float, list)):
            assert config[name] == value
    again = FixedMultiHeadAttention.from_config(config)
    assert again.get_config() == config
    assert again.kernel_regularizer.l2 == pytest.approx(0.1)


def test_clone_model():
    inputs = keras.Input((T, D))
    model = keras.Model(inputs, FixedMultiHeadAttention(N)(inputs))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    x = normal(B, T, D)
    np.testing.assert_allclose(clone(x), model(x), atol=1e-6)


def test_dropout_acts_in_training_only():
    layer = FixedMultiHeadAttention(N, H, dropout=0.5)
    x = normal(B, T, D)
    plain = layer(x)
    np.testing.assert_array_equal(layer(x, training=False), plain)
    dropped = layer(x, training=True)
    assert np.abs(ops.convert_to_numpy(dropped - plain)).max() > 1e-3


def test_symbolic_shapes_with_scores():
    layer = FixedMultiHeadAttention(N, H, output_dim=19)
    output, scores = layer(
        keras.Input((T, D)), keras.Input((S, E)), return_attention_scores=True
    )
    assert output.shape == (None, T, 19)
    assert scores.shape == (None, N, T, S)
    assert layer.compute_output_shape((B, T, D)) == (B, T, 19)


@pytest.mark.parametrize("head_size", [H, [2, 3, 5]])
def test_lora(head_size, tmp_path):
    inputs = keras.Input((T, D))
    layer = FixedMultiHeadAttention(N, head_size)
    model = keras.Model(inputs, layer(inputs))
    x = normal(B, T, D)
    before = ops.convert_to_numpy(model(x))
    for projection in (layer.query, layer.value):
        projection.enable_lora(2)
    np.testing.assert_allclose(model(x), before, atol=1e-6)
    layer.query.lora_kernel_b.assign(normal(2, sum(layer.head_sizes)))
    after = ops.convert_to_numpy(model(x))
    assert abs(after - before).max() > 1e-3
    model.save(tmp_path / "lora.keras")
    again = keras.models.load_model(tmp_path / "lora.keras")
    np.testing.assert_allclose(again(x), after, atol=1e-5)


# Keras warns of every layer that has nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("head_size", [H, [2, 3, 5]])
def test_int8(head_size, tmp_path):
    inputs = keras.Input((T, D))
    layer = FixedMultiHeadAttention(N, head_size)
    model = keras.Model(inputs, layer(inputs))
    x = normal(B, T, D)
    before = ops.convert_to_numpy(model(x))
    model.quantize("int8")
    assert layer.query.kernel.dtype == "int8"
    after = ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(after, before, atol=0.05)
    model.save(tmp_path / "int8.keras")
    again = keras.models.load_model(tmp_path / "int8.keras")
    np.testing.assert_allclose(again(x), after, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "num_heads=0"),
        ({"num_heads": -1}, "num_heads=-1"),
        ({"num_heads": 2.0}, "num_heads=2.0"),
        ({"num_heads": True}, "num_heads=True"),
        ({"head_size": 0}, "head_size=0"),
        ({"head_size": "8"}, "head_size='8'"),
        ({"head_size": [2, 3]}, r"3 heads.*head_size=\[2, 3\]"),
        ({"head_size": [2, 3, -1]}, "head_size=-1"),
        ({"attention_window": 0}, "attention_window=0"),
        ({"attention_scale": 0}, "attention_scale=0"),
        ({"attention_scale": -0.1}, "attention_scale=-0.1"),
        ({"attention_scale": float("inf")}, "attention_scale=inf"),
        ({"attention_scale": float("nan")}, "attention_scale=nan"),
        ({"attention_scale": True}, "attention_scale=True"),
        ({"attention_scale": "1"}, "attention_scale='1'"),
        ({"attention_scale": [0.1] * 3}, "attention_scale=.0.1"),
        ({"output_dim": 1.5}, "output_dim=1.5"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"dropout": "0.1"}, "dropout='0.1'"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        FixedMultiHeadAttention(**{"num_heads": 3, "head_size": H, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_dim": 64}, "`key_dim`. Pass `head_size`. .*key_dim=64"),
        ({"sliding_window": 3}, "Pass `attention_window`"),
        ({"output_shape": 5}, "Pass `output_dim`"),
        ({"flash_attention": True}, "Leave it out"),
    ],
    ids=str,
)
def test_arguments_of_keras_layer_point_to_ours(arguments, message):
    with pytest.raises(TypeError, match=message):
        FixedMultiHeadAttention(3, **arguments)


@pytest.mark.parametrize(
    ("inputs", "masks", "message"),
    [
        ([(T, D)], {}, r"`query` must have rank 3.*\(5, 11\)"),
        ([(B, T, D), (B, S, 3, E)], {}, "`(key|value)` must have rank 3"),
        ([(B, T, D), (B, S, E), (B, T, E)], {}, "the same length"),
        ([(B, T, D)], {"value_mask": (B, S)}, r"`value_mask`.*\(2, 7\)"),
        ([(B, T, D)], {"key_mask": (B, T, 1)}, "`key_mask`"),
        ([(B, T, D)], {"query_mask": (3, T)}, "`query_mask`"),
        ([(B, T, D)], {"attention_mask": (B, S, T)}, r"\(2, 7, 5\)"),
        ([(B, T, D)], {"attention_mask": (B, 2, T, T)}, r"\(2, 2, 5, 5\)"),
        ([(B, T, D)], {"attention_mask": (T,)}, "rank 2 or 3 or 4"),
    ],
    ids=str,
)
def test_bad_inputs(inputs, masks, message):
    layer = FixedMultiHeadAttention(N, H)
    with pytest.raises(ValueError, match=message):
        layer(
            *(normal(*shape) for shape in inputs),
            **{name: np.ones(shape, bool) for name, shape in masks.items()},
        )
