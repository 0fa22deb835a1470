"""The layer against `keras.layers.MultiHeadAttention` and against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadTransformerBlock, FixedMultiHeadAttention
from keras_fixedhead.convert import from_multi_head_attention
from tests.keras_fixedhead.attention_inputs import SIZES, mask, normal
from tests.tiny_models import as_numpy, assert_close, randomize

B, T, S, D, E, N, H = SIZES


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
    return as_numpy((output, list(gradients)))


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


def keras_and_ours(*shapes, **arguments):
    """Keras's layer with random weights, and what it is converted to."""
    theirs = keras.layers.MultiHeadAttention(N, H, **arguments)
    theirs.build(*shapes)
    return theirs, from_multi_head_attention(randomize(theirs))


class TestAgainstKeras:
    @pytest.mark.parametrize(
        "names",
        [(), *((name,) for name in MASKS), tuple(MASKS)],
        ids=lambda names: "+".join(names) or "no_mask",
    )
    def test_cross_attention_with_masks(self, names):
        inputs = normal(B, T, D), normal(B, S, E), normal(B, S, D)
        theirs, ours = keras_and_ours(*(x.shape for x in inputs))
        masks = {name: MASKS[name] for name in names}
        expected, expected_gradients = output_and_gradients(
            theirs, *inputs, **masks
        )
        output, gradients = output_and_gradients(ours, *inputs, **masks)
        assert_close(output, expected, atol=1e-5)
        for ours_, theirs_ in zip(gradients, expected_gradients):
            assert_close(ours_, theirs_.reshape(ours_.shape), atol=1e-5)
        masks["return_attention_scores"] = True
        expected = theirs(*inputs, **masks)
        assert_close(ours(*inputs, **masks), expected, atol=1e-5)

    @pytest.mark.parametrize("shape", [(T, S), (B, 1, S), (B, N, T, S)])
    def test_attention_mask_shapes(self, shape):
        query, value = normal(B, T, D), normal(B, S, E)
        theirs, ours = keras_and_ours(query.shape, value.shape)
        output, expected = (
            layer(query, value, attention_mask=mask(*shape))
            for layer in (ours, theirs)
        )
        assert_close(output, expected, atol=1e-5)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"use_bias": False, "output_shape": 19},
            {"sliding_window": 3, "dropout": 0.3, "seed": 5},
        ],
        ids=str,
    )
    def test_options(self, arguments):
        x = normal(B, T, D)
        theirs, ours = keras_and_ours(x.shape, x.shape, **arguments)
        for causal in (False, True):
            expected = theirs(x, x, use_causal_mask=causal)
            assert_close(ours(x, use_causal_mask=causal), expected, atol=1e-5)

    @pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
    def test_mixed_precision(self, dtype):
        x = normal(B, T, D)
        theirs, ours = keras_and_ours(x.shape, x.shape, dtype=dtype)
        output = ours(x, value_mask=mask(B, T))
        assert keras.backend.standardize_dtype(output.dtype) == dtype[6:]
        expected = theirs(x, x, value_mask=mask(B, T))
        atol = 0.1 if "bfloat16" in dtype else 0.01
        assert_close(output, expected, atol=atol)

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
        with pytest.raises(ValueError, match=next(iter(arguments))):
            keras_and_ours((B, T, D), (B, T, D), **arguments)

    def test_not_built_is_an_error(self):
        with pytest.raises(ValueError, match="been called or built"):
            from_multi_head_attention(keras.layers.MultiHeadAttention(N, H))


class TestAgainstNumpy:
    """Where Keras's layer is inconsistent, and what it does not have."""

    def layer(self, head_size=H, **arguments):
        layer = FixedMultiHeadAttention(N, head_size, **arguments)
        layer.build((B, T, D), (B, S, E))
        return randomize(layer)

    def test_fully_masked_rows_and_query_mask(self):
        layer = self.layer()
        query, value = normal(B, T, D), normal(B, S, E)
        attention_mask, query_mask = mask(B, T, S), mask(B, T)
        attention_mask[1, 2] = False
        query_mask[0, 3] = False
        allowed = attention_mask & query_mask[:, :, None]
        results = layer(
            query,
            value,
            attention_mask=attention_mask,
            query_mask=query_mask,
            return_attention_scores=True,
        )
        expected = numpy_attention(layer, query, value, allowed[:, None])
        assert_close(results, expected, atol=1e-5)
        for place in ((1, 2), (0, 3)):
            np.testing.assert_allclose(
                results[0][place], layer.attention_output.bias, atol=1e-6
            )

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
        plain = ops.convert_to_numpy(x)
        expected, _ = numpy_attention(layer, plain, plain, allowed[:, None])
        assert_close(layer(x, x, x, **explicit), expected, atol=1e-5)

    def test_masks_by_position_and_as_lists(self):
        """As Keras's layer takes them, also in a functional model."""
        layer = self.layer()
        arrays = [normal(B, T, D), normal(B, S, E), normal(B, S, E)]
        masks = [mask(B, length, seed=length) for length in (T, S)]
        lists = {"query_mask": masks[0].tolist(), "value_mask": masks[1]}
        expected = layer(*arrays, **lists)
        np.testing.assert_array_equal(layer(*arrays, *masks), expected)
        inputs = [keras.Input(x.shape[1:]) for x in arrays]
        inputs += [keras.Input(x.shape[1:], dtype="bool") for x in masks]
        model = keras.Model(inputs, layer(*inputs))
        assert_close(model([*arrays, *masks]), expected, atol=1e-6)

    @pytest.mark.parametrize(
        ("name", "shape"), [("value_mask", (B, S)), ("attention_mask", (T, S))]
    )
    def test_float_masks_are_an_error(self, name, shape):
        """They could be additive, where 0 means attend."""
        layer = self.layer()
        additive = np.where(mask(*shape), 0.0, -1e9).astype("float32")
        for received in (additive, additive.tolist()):
            with pytest.raises(ValueError, match=f"`{name}`.*mask == 0"):
                layer(normal(B, T, D), normal(B, S, E), **{name: received})

    @pytest.mark.parametrize(("target", "source"), [(0, 0), (0, S), (T, 0)])
    def test_empty_sequences(self, target, source):
        layer = self.layer()
        output = layer(
            normal(B, target, D),
            normal(B, source, E),
            value_mask=np.ones((B, source), bool),
            use_causal_mask=True,
        )
        assert output.shape == (B, target, D)
        bias = np.broadcast_to(layer.attention_output.bias, output.shape)
        np.testing.assert_allclose(output, bias)

    def test_fully_masked_rows_are_finite_in_half_precision(self):
        layer = FixedMultiHeadAttention(N, H, dtype="float16")
        output, scores = layer(
            normal(B, T, D),
            value_mask=np.zeros((B, T), bool),
            return_attention_scores=True,
        )
        assert not ops.convert_to_numpy(ops.any(scores != 0))
        assert not ops.convert_to_numpy(ops.any(output != 0))

    @pytest.mark.parametrize(
        ("head_size", "options"),
        [
            ((2, 3, 5), {}),
            ((3, 3, 2), {}),
            ((2, 5, 5), {"attention_scale": 0.3}),
            (H, {"attention_scale": 1}),
            (H, {"attention_window": 2}),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("causal", [False, True])
    def test_head_sizes_scales_and_windows(self, head_size, options, causal):
        layer = self.layer(head_size, **options)
        query, value = normal(B, T, D), normal(B, S, E)
        attention_mask = mask(B, N, T, S)
        distance = np.arange(T)[:, None] - np.arange(S)
        allowed = abs(distance) < options.get("attention_window", np.inf)
        if causal:
            allowed &= distance >= 0
        scale = options.get("attention_scale")
        both = attention_mask & allowed
        expected = numpy_attention(layer, query, value, both, scale)
        results = layer(
            query,
            value,
            attention_mask=attention_mask,
            use_causal_mask=causal,
            return_attention_scores=True,
        )
        assert_close(results, expected, atol=1e-5)


def test_implicit_masks_in_a_compiled_model():
    """`test_task.py` does the same with masks that a task takes as inputs."""
    inputs = keras.Input((None,), dtype="int32")
    x, y = (
        keras.layers.Embedding(6, D, mask_zero=True)(inputs) for _ in range(2)
    )
    outputs = {
        "self_attention_by_keyword": FixedMultiHeadAttention(N, H)(query=x),
        "causal": FixedMultiHeadAttention(N, H)(x, use_causal_mask=True),
        "cross_attention": FixedMultiHeadAttention(N, H)(y, x),
        "block": FixedHeadTransformerBlock(N, 13, head_size=H)(x),
    }
    mean = keras.layers.GlobalAveragePooling1D()
    model = keras.Model(inputs, {name: mean(x) for name, x in outputs.items()})
    randomize(model)
    ids = np.random.default_rng(0).integers(1, 6, (B, T))
    whole, padded = (
        model.predict(np.pad(ids, ((0, 0), (0, padding))), verbose=0)
        for padding in (0, 3)
    )
    assert_close(padded, whole, atol=1e-5)
