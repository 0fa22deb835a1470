"""Theorem 2: larger heads compute what smaller ones do, and more."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedMultiHeadAttention
from keras_fixedhead.convert import from_multi_head_attention
from keras_fixedhead.theory import (
    check_strictness,
    find_difference,
    strict_layer,
)
from tests.tiny_models import randomize

pytestmark = pytest.mark.any_backend


def make_standard(dim, heads, head_size, dtype="float32", **arguments):
    """A Keras layer with random weights, biases if asked for."""
    arguments = {"use_bias": False, **arguments}
    layer = keras.layers.MultiHeadAttention(
        heads, head_size, dtype=dtype, **arguments
    )
    layer.build((None, None, dim), (None, None, dim))
    return randomize(layer, scale=0.7)


def make_fixed(arguments):
    """A built layer of four heads for an embedding size of 12."""
    layer = FixedMultiHeadAttention(**{"num_heads": 4, **arguments})
    layer.build((None, None, 12))
    return layer


def kernels(layer):
    return [
        np.array(ops.convert_to_numpy(dense.kernel), "float64")
        for dense in (
            layer.query,
            layer.key,
            layer.value,
            layer.attention_output,
        )
    ]


def make_adversary(layer, heads, seed=0):
    """A Keras layer that is as near to `layer` as one comes: M' = M, and A_i
    the nearest matrix to U of its rank."""
    query, key, value, output = kernels(layer)
    dim, wide = len(query), layer.head_sizes[0]
    narrow = dim // heads
    standard = make_standard(dim, heads, narrow, layer.compute_dtype)
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]
    standard.value_dense.kernel.assign(basis.reshape(dim, heads, narrow))
    standard.output_dense.kernel.assign(
        (basis.T @ value @ output).reshape(heads, narrow, dim)
    )
    left, singular, right = np.linalg.svd(
        key[:, :wide]
        @ query[:, :wide].T
        * (layer.attention_scale or 1 / np.sqrt(wide))
    )
    singular = np.sqrt(narrow) * singular[:narrow]
    for dense, columns in (
        (standard.key_dense, left[:, :narrow] * singular),
        (standard.query_dense, right[:narrow].T),
    ):
        dense.kernel.assign(np.tile(columns[:, None], (1, heads, 1)))
    return standard


def relative_difference(layer, standard, inputs):
    rows = inputs.T[None]
    output, other = layer(rows), standard(rows, rows)
    output, other = (ops.convert_to_numpy(x) for x in (output, other))
    return np.linalg.norm(other - output) / np.linalg.norm(output)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    if request.param == "float64":
        request.getfixturevalue("float64")
    return request.param


class TestInclusion:
    @pytest.mark.parametrize("head_size", [4, 11])
    def test_outputs_and_scores_stay(self, dtype, head_size):
        # Keras takes 1 / sqrt(key_dim) in float32; of 4, that is exact.
        standard = make_standard(13, 5, 4, dtype, use_bias=True, output_shape=7)
        tolerance = {"float32": 1e-6, "float64": 1e-12}[dtype]
        rng = np.random.default_rng(2)
        query = 0.3 * rng.standard_normal((2, 4, 13)).astype(dtype)
        value = 0.3 * rng.standard_normal((2, 6, 13)).astype(dtype)
        larger = from_multi_head_attention(standard, head_size)
        assert larger.head_sizes == (head_size,) * 5
        results = [
            attend(query, value, return_attention_scores=True)
            for attend in (larger, standard)
        ]
        for ours, theirs in zip(*results):
            ours, theirs = map(ops.convert_to_numpy, (ours, theirs))
            assert ours.dtype == dtype
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)

    def test_new_columns_depend_on_the_seed(self):
        standard = make_standard(7, 2, 3)
        one, other = (
            kernels(from_multi_head_attention(standard, 5, seed))[1]
            for seed in (0, 1)
        )
        new = np.isin(np.arange(10), [3, 4, 8, 9])
        np.testing.assert_array_equal((one != other).all(0), new)

    @pytest.mark.parametrize("head_size", [2, (3, 3)])
    def test_smaller_heads_are_an_error(self, head_size):
        with pytest.raises(ValueError, match="`head_size` must.*Received: h"):
            from_multi_head_attention(make_standard(7, 2, 3), head_size)


class TestDifference:
    @pytest.mark.parametrize(
        ("dim", "heads", "head_size", "length"),
        [(12, 4, 5, 3), (12, 6, 12, 2), (10, 2, 7, 7)],
    )
    def test_is_found(self, dtype, dim, heads, head_size, length):
        layer = strict_layer(dim, heads, head_size, dtype=dtype)
        for standard in (
            make_standard(dim, heads, dim // heads, dtype),
            make_adversary(layer, heads),
        ):
            found = find_difference(layer, standard, length)
            assert found.inputs.shape == (dim, length)
            assert found.inputs.dtype == dtype
            assert found.relative > 0.3
            assert relative_difference(
                layer, standard, found.inputs
            ) == pytest.approx(found.relative, rel=1e-4)

    def test_equal_tokens_show_what_values_differ_in(self, monkeypatch):
        layer, standard = strict_layer(12, 4, 5), make_standard(12, 4, 3)
        monkeypatch.setattr(
            "keras_fixedhead.theory.expressiveness._two_tokens",
            lambda *_: np.ones((1, 12, 3)),
        )
        found = find_difference(layer, standard, 3)
        assert np.ptp(found.inputs, axis=1).max() == 0.0
        # M is the identity: the most that M' differs by, for any token.
        _, _, value, output = kernels(from_multi_head_attention(standard))
        expected = np.linalg.norm(value @ output - np.eye(12), 2)
        assert found.relative == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize(("logits", "scale"), [(1e-5, None), (1e4, 5.0)])
    def test_logits_of_any_size(self, logits, scale):
        strict = strict_layer(12, 4, 5)
        layer = make_fixed(strict.get_config() | {"attention_scale": scale})
        layer.set_weights(strict.get_weights())
        layer.query.kernel.assign(logits * layer.query.kernel)
        standard = make_adversary(layer, 4)
        assert find_difference(layer, standard).relative > 0.3

    def test_v_is_moved_where_the_head_has_no_value_for_it(self):
        """Head 0 differs most, along the first unit vector, of which it has
        no value; head 1 has one, and the logits of `layer`."""
        unit = np.eye(12)
        layer = strict_layer(12, 4, 5)
        for logits in (layer.query, layer.key):
            logits.kernel.assign(np.tile(unit[:, :5], 4))
        standard = make_standard(12, 4, 3)
        basis = unit[:, [5, 6, 7, 0, 1, 2, 3, 4, 8, 9, 10, 11]]
        standard.value_dense.kernel.assign(basis.reshape(12, 4, 3))
        standard.output_dense.kernel.assign(basis.T.reshape(4, 3, 12))
        queries = np.tile(unit[:, None, :3], (1, 4, 1))
        keys = queries * np.sqrt(3 / 5)
        keys[0, 0, 0] *= -2
        standard.query_dense.kernel.assign(queries)
        standard.key_dense.kernel.assign(keys)
        assert find_difference(layer, standard).relative > 0.1

    def test_a_fixed_layer_with_small_heads(self):
        layer = strict_layer(12, 4, 5)
        other = make_fixed({"head_size": [4, 4, 3, 1], "use_bias": False})
        assert find_difference(layer, randomize(other, 0.7)).relative > 0.3

    def test_rounding_is_not_taken_for_a_difference(self, monkeypatch):
        layer = strict_layer(12, 4, 5)
        standard = make_adversary(layer, 4)
        module = "keras_fixedhead.theory.expressiveness"
        # Equal tokens only, on which both compute the same.
        monkeypatch.setattr(
            f"{module}._two_tokens", lambda *_: np.ones((2, 12, 3))
        )
        with pytest.raises(RuntimeError, match="No input was found"):
            find_difference(layer, standard, 3)

    def test_what_the_standard_layer_must_not_be(self):
        layer = strict_layer(12, 4, 5)
        for standard, message in (
            (make_standard(14, 4, 3), "of `layer`. Received: 14 and 12"),
            (make_standard(12, 4, 5), "narrower than 5"),
            (make_standard(12, 5, 3), r"as wide as the embedding \(12\)"),
            (
                make_standard(12, 4, 3, use_bias=True),
                "biases in query, key, value, attention_output",
            ),
            (make_standard(12, 4, 3, sliding_window=2), "attention_window=2"),
            (keras.layers.Dense(12), "built attention layer"),
        ):
            with pytest.raises(ValueError, match=f"`standard`.*{message}"):
                find_difference(layer, standard)


# Of the kernels of four heads of 5.
COLUMNS = np.arange(20)


class TestConditions:
    def test_strict_layers_have_them(self):
        layers = [strict_layer(12, 6, 12, seed=s) for s in (0, 1)]
        for layer in layers:
            check_strictness(layer, 2)
            _, _, value, output = kernels(layer)
            np.testing.assert_allclose(value @ output, np.eye(12), atol=1e-6)
        one, other = map(kernels, layers)
        assert all((a != b).any() for a, b in zip(one, other))

    def test_heads_may_split_the_same_logits_differently(self):
        layer = strict_layer(12, 4, 5)
        query, key, _, _ = kernels(layer)
        rng = np.random.default_rng(0)
        for i in range(4):
            mix = rng.standard_normal((5, 5)) + 3 * np.eye(5)
            columns = slice(5 * i, 5 * i + 5)
            query[:, columns] = query[:, columns] @ mix
            key[:, columns] = key[:, columns] @ np.linalg.inv(mix).T
        layer.query.kernel.assign(query)
        layer.key.kernel.assign(key)
        check_strictness(layer, 2)

    def test_biases_of_zero_are_allowed(self):
        plain = strict_layer(12, 4, 5)
        layer = make_fixed({"head_size": 5})
        names = ("query", "key", "value", "attention_output")
        for name, kernel in zip(names, kernels(plain)):
            getattr(layer, name).kernel.assign(kernel)
        check_strictness(layer, 2)
        for name in names:
            bias = getattr(layer, name).bias
            bias.assign(bias + 0.1)
            with pytest.raises(ValueError, match=f"biases in {name}"):
                check_strictness(layer, 2)
            bias.assign(bias * 0)

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ((5, 4, 7), r"above the embedding size \(5\).*head_size=7"),
            ((12, 3, 4), r"more heads .*\(12 / 4\).*num_heads=3"),
            ((12, 4.0, 5), "`num_heads` must be a positive"),
        ],
    )
    def test_sizes(self, sizes, message):
        with pytest.raises(ValueError, match=message):
            strict_layer(*sizes)

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            (
                "value",
                lambda x: x * (np.arange(12) < 11)[:, None],
                "rank 11 of 12",
            ),
            ("key", lambda x: x + (COLUMNS == 17) / 99, "head 3 differs"),
            ("query", lambda x: np.where(COLUMNS % 5, x, 0), "rank 4 of 5"),
        ],
    )
    def test_kernels(self, name, change, message):
        layer = strict_layer(12, 4, 5)
        kernel = getattr(layer, name).kernel
        kernel.assign(change(ops.convert_to_numpy(kernel)))
        with pytest.raises(ValueError, match=message):
            check_strictness(layer, 2)

    def test_layers_it_is_not_about(self):
        quantized = strict_layer(12, 4, 5)
        quantized.query.quantize("int8")
        for layer, length, message in (
            (make_fixed({"head_size": (5, 5, 5, 4)}), 2, "one size"),
            (
                make_fixed({"head_size": 5, "attention_window": 3}),
                2,
                "attention_window=3",
            ),
            (
                make_fixed({"head_size": 5, "dtype": "mixed_bfloat16"}),
                2,
                "dtype bfloat16",
            ),
            (quantized, 2, "quantized"),
            (FixedMultiHeadAttention(4, 5), 2, "built attention layer"),
            (strict_layer(12, 4, 5), 1, "`sequence_length` must be"),
        ):
            with pytest.raises(ValueError, match=message):
                check_strictness(layer, length)
