"""The record of costs: bytes as Keras holds them, heads counted one by one."""

import json
import math

import pytest

from keras_fixedhead import presets
from keras_fixedhead.planner import (
    Cost,
    EncoderShape,
    ParameterCount,
    activation_bytes,
)


def cost_of(name, sequence_length=128):
    return Cost.of(EncoderShape(**presets.shape(name)), sequence_length)


def bytes_of(backbone):
    sizes = {"float32": 4, "bfloat16": 2, "int8": 1}
    return sum(math.prod(v.shape) * sizes[v.dtype] for v in backbone.weights)


@pytest.mark.slow
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
    assert record["heads_under_length"] == 0
    assert record["bottlenecked"] is False
    assert record["depth_threshold"] == pytest.approx(5.68, abs=0.005)
    assert record["fitted_depth_threshold"] == pytest.approx(21.6, abs=0.05)
    assert record["shape"]["hidden_dim"] == 512
    assert record["sequence_length"] == 128
    shape = EncoderShape(**presets.shape("fixed_d512_p128_h8"))
    # BERT predicts 20 of 128 tokens.
    assert record["batch_size"] == 32
    assert record["activation_bytes"] == activation_bytes(shape, 32, 128, 20)
    assert record["state_bytes"] == 16 * 167_690_044
    small = Cost.of(shape, 128, batch_size=1)
    assert 32 * small.activation_bytes == record["activation_bytes"]


def test_it_holds_the_parameters():
    cost = cost_of("bert_large_h16")
    assert cost.parameters == ParameterCount.of(cost.shape)
    assert cost.heads_under_length == cost.heads == 24 * 16
    assert cost.smallest_head_size == 64


@pytest.mark.parametrize("length", [0, -1, 2.5, True, None, 513, "128"])
def test_no_length(length):
    with pytest.raises(ValueError, match="`sequence_length` must.*Received"):
        cost_of("fixed_d512_p128_h8", length)


def test_no_shape():
    with pytest.raises(ValueError, match="`model` must be.*Received"):
        Cost.of({"hidden_dim": 512}, 128)
