"""Costs: operations by hand and as a compiler counts, bytes as Keras holds."""

import json
import math

import keras
import numpy as np
import pytest

from keras_fixedhead import presets
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.planner import (
    Cost,
    EncoderShape,
    activation_bytes,
    encoder_flops,
    forward_flops,
    masked_lm_flops,
    training_flops,
)


def cost_of(name, sequence_length=128):
    return Cost.of(EncoderShape(**presets.shape(name)), sequence_length)


def bytes_of(backbone):
    sizes = {"float32": 4, "bfloat16": 2, "int8": 1}
    return sum(math.prod(v.shape) * sizes[v.dtype] for v in backbone.weights)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.slow
def test_bytes_of_weights(make_backbone):
    arguments = {"head_size": [5, 2], "pooler": True}
    backbone = make_backbone(**arguments)
    expected = Cost.of(backbone, 13).weight_bytes
    half = make_backbone(**arguments, dtype="bfloat16")
    small = make_backbone(**arguments)
    small.quantize("int8")
    assert expected == {
        "float32": bytes_of(backbone),
        "bfloat16": bytes_of(half),
        "int8": bytes_of(small),
    }


def test_heads_under_the_length(make_backbone):
    cost = Cost.of(make_backbone(head_size=[(5, 2, 11), 13]), 11)
    assert (cost.heads, cost.heads_under_length) == (6, 2)
    assert cost.smallest_head_size == 2
    assert cost.bottlenecked and not cost.embedding_under_length
    whole = Cost.of(make_backbone(head_size=11), 11)
    assert whole.heads_under_length == 0 and not whole.bottlenecked
    # d = 11: no head size gives the logits a higher rank.
    narrow = Cost.of(make_backbone(head_size=13), 13)
    assert narrow.heads_under_length == 0
    assert narrow.embedding_under_length and narrow.bottlenecked


def test_a_shape_of_the_paper():
    record = json.loads(json.dumps(cost_of("fixed_d512_p128_h8").as_dict()))
    assert record["parameters"] == 167_690_044
    assert sum(record["parameters_by_part"].values()) == record["parameters"]
    # Dense, norm, a bias for each word; two for the next sentence.
    heads = 513 * 512 + 2 * 512 + 30522 + 2 * 513
    assert record["encoder_parameters"] == 167_690_044 - heads
    assert record["weight_bytes"]["float32"] == 4 * (167_690_044 - heads)
    assert record["document_bytes"] == {
        "float32": 2048,
        "float16": 1024,
        "int8": 512,
    }
    # 24 layers: projections, scores and sums, feed-forward; 128 tokens.
    layer = 8 * 512 * 1024 + 4 * 128 * 1024 + 4 * 512 * 4096
    assert record["forward_flops"] == 128 * 24 * layer
    assert record["training_flops"] == 3 * 128 * 24 * layer
    assert record["heads"] == 24 * 8
    assert record["smallest_head_size"] == 128
    assert record["heads_under_length"] == 0
    assert record["bottlenecked"] is False
    assert record["depth_threshold"] == pytest.approx(5.68, abs=0.005)
    assert record["fitted_depth_threshold"] == pytest.approx(21.6, abs=0.05)
    shape = EncoderShape(**presets.shape("fixed_d512_p128_h8"))
    assert record["shape"] == vars(shape)
    assert record["sequence_length"] == 128
    # BERT predicts 20 of 128 tokens.
    assert record["batch_size"] == 32
    assert record["activation_bytes"] == activation_bytes(shape, 32, 128, 20)
    assert record["state_bytes"] == 16 * 167_690_044
    small = Cost.of(shape, 128, batch_size=1)
    assert 32 * small.activation_bytes == record["activation_bytes"]


@pytest.mark.parametrize("length", [0, -1, 2.5, True, None, 513, "128"])
def test_no_length(length):
    with pytest.raises(ValueError, match="`sequence_length` must.*Received"):
        cost_of("fixed_d512_p128_h8", length)


def test_no_shape():
    with pytest.raises(ValueError, match="`model` must be.*Received"):
        Cost.of({"hidden_dim": 512}, 128)


def products_flops(shapes):
    """A vector times a matrix `[rows, columns]` is as many multiply-adds."""
    return sum(2 * rows * columns for rows, columns in shapes)


@pytest.mark.parametrize("head_size", [7, [5, 2]])
def test_every_product_by_hand(make_backbone, head_size):
    backbone = make_backbone(head_size=head_size)
    shapes = []
    for size in [7, 7] if head_size == 7 else head_size:
        # Three heads, d = 11, feed-forward 23, 13 tokens to attend to.
        shapes += 3 * [(11, 3 * size)]  # queries, keys, values
        shapes += 3 * [(size, 13), (13, size)]  # scores, sums of values
        shapes += [(3 * size, 11), (11, 23), (23, 11)]
    assert encoder_flops(backbone, 13) == products_flops(shapes)
    # All of the last block but its keys and values, for a half of the tokens.
    size = backbone.transformer_layers[-1].attention.head_size
    shapes = [(11, 3 * size), *3 * [(size, 13), (13, size)]]
    shapes += [(3 * size, 11), (11, 23), (23, 11)]
    saved = encoder_flops(backbone, 13) - encoder_flops(backbone, 13, 0.5)
    assert saved == products_flops(shapes) / 2
    head = [(11, 11), (11, backbone.vocabulary_size)]
    assert masked_lm_flops(backbone) == products_flops(head)


@pytest.mark.parametrize("head_size", [7, [5, 2], [(5, 2, 3), 13], None])
def test_of_a_shape_as_of_the_model(make_backbone, head_size):
    backbone = make_backbone(head_size=head_size)
    shape = EncoderShape.of(backbone)
    widths = [
        layer.attention.query.units for layer in backbone.transformer_layers
    ]
    assert list(shape.attention_widths) == widths
    assert encoder_flops(shape, 13, 0.5) == encoder_flops(backbone, 13, 0.5)
    assert masked_lm_flops(shape) == masked_lm_flops(backbone)
    for model in shape, backbone:
        assert forward_flops(model, 13) == 13 * encoder_flops(backbone, 13)
        assert training_flops(model, 13) == 39 * encoder_flops(backbone, 13)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX counts operations, too"
)
def test_as_the_compiler_counts(make_backbone):
    import jax

    model = FixedHeadMaskedLM(
        make_backbone(
            hidden_dim=113, intermediate_dim=251, head_size=59, num_heads=5
        )
    )
    encoder, head = model.backbone, model.masked_lm_head

    def flops(layer, *inputs):
        def call(*inputs):
            values = [v.value for v in layer.trainable_variables]
            others = [v.value for v in layer.non_trainable_variables]
            return layer.stateless_call(values, others, *inputs)[0]

        return jax.jit(call).lower(*inputs).cost_analysis()["flops"]

    ids = np.ones([2, 17], "int32")
    total = flops(encoder, {name: ids for name in encoder.input})
    # It counts what is no product, too: norms, softmax, activations.
    assert 1.0 < total / (2 * 17 * encoder_flops(encoder, 17)) < 1.03
    total = flops(head, np.ones([2, 17, 113], "float32"), ids[:, :7])
    assert 1.0 < total / (2 * 7 * masked_lm_flops(encoder)) < 1.1
